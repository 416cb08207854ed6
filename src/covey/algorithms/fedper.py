"""FedPer: shared base layers and personal layers, trained together."""

from typing import NamedTuple

import optax

from covey.algorithms.averaging import Weighting, change, local_work, optimizer_or
from covey.algorithms.fedrep import with_heads
from covey.core.algorithm import Algorithm
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.mixed import MixedModel


class Work(NamedTuple):
    """The clients' schedules; see `fedper`."""

    batch_size: int | None
    epochs: int
    steps: int | None
    adapt_epochs: int


def fedper(
    model: MixedModel,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedPer: clients train shared and personal parameters and send only the shared ones.

        client:  (phi_i, z_i) = optimiser steps on F_i from (phi, the z_i of its last round)
                 Delta_i = phi - phi_i
        server:  phi = server optimiser(phi, sum_i w_i Delta_i / sum_i w_i)

    It is FedRep with one local optimisation of both parts. With no personal parameters in the model
    this is FedAvg, with no shared ones local training.

    Args:
        model: Mixed model, e.g. `covey.models.mixed_mlp()` or `split_network(model)`: phi are its
            shared parameters, z its effects.
        client_optimizer: Optax optimiser of the local steps on both parts. Default: SGD with step
            size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change of phi as its gradient.
            Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        adapt_epochs: Passes over its rows that an unseen client trains its personal part for, with
            phi fixed.
        weighting: Whether clients count by their training rows ("rows", as in the paper) or equally
            ("equal").

    Returns:
        A method for `covey.run`. A client's state is its personal part.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> model = covey.models.linear_map(effects=2)
        >>> run = covey.run(covey.fedper(model, epochs=10), data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Arivazhagan, Aggarwal, Singh and Choudhary (2019), Federated learning with
    personalization layers, algorithms 1 and 2.

    Departures from the paper: cohorts, other optimisers and equal weights are additions, and so is
    the unseen client.
    """
    need(model, MixedModel, "fedper")
    return trained_together(
        "fedper",
        model,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        work=Work(batch_size, epochs, steps, adapt_epochs),
        weighting=weighting,
    )


def trained_together(
    name: str,
    model: MixedModel,
    *,
    client_optimizer: optax.GradientTransformation | None,
    server_optimizer: optax.GradientTransformation | None,
    work: Work,
    weighting: Weighting,
) -> Algorithm:
    """The method itself, whichever part of a network is the shared one; see `fedper`."""
    gradient = mean_gradient(lambda both, rows: model.log_likelihood(both.phi, both.head, rows))
    plan = local_work(name, batch_size=work.batch_size, epochs=work.epochs, steps=work.steps)
    optimizer = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", name)

    def solve(key, at, data):
        end = descend(key, data, gradient, optimizer, plan, at)
        delta, info = change(at, end)
        return delta.phi, end.parameters.head, info

    return with_heads(
        name,
        model,
        solve,
        head_optimizer=optimizer,
        adapt_plan=local_work(
            name, batch_size=work.batch_size, epochs=work.adapt_epochs, prefix="adapt_"
        ),
        server_optimizer=server_optimizer,
        weighting=weighting,
    )
