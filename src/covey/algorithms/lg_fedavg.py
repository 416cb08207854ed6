"""LG-FedAvg: FedPer with the two sides exchanged."""

import optax

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedper import Work, trained_together
from covey.core.algorithm import Algorithm
from covey.models.catalogue import need
from covey.models.model import Model
from covey.models.split import Names, split_network


def lg_fedavg(
    model: Model,
    *,
    shared: Names = "output",
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """LG-FedAvg: a personal representation for each client, and a shared head.

        client:  (z_i, phi_i) = optimiser steps on F_i from (the z_i of its last round, phi)
                 Delta_i = phi - phi_i
        server:  phi = server optimiser(phi, sum_i w_i Delta_i / sum_i w_i)

    phi is the head, e.g. the last layer, and z_i all the rest: FedPer with the sides exchanged. The
    upload is small, as a head is.

    Args:
        model: Network to train, whose parameters have named fields, such as `covey.models.mlp()`.
        shared: Names of the fields that clients share, as in `covey.models.split_network`. Default:
            "output", the last layer.
        client_optimizer: Optax optimiser of the local steps on both parts. Default: SGD with step
            size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change of phi as its gradient.
            Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        adapt_epochs: Passes over its rows that an unseen client trains its personal part for, from
            the initial one and with phi fixed.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is its representation.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.lg_fedavg(covey.models.linear(), shared="bias")
        >>> covey.run(method, data, rounds=60, seed=1).evaluate(split="train").pooled["mse"] < 0.1
        True

    Reference: Liang et al. (2020), Think locally, act globally: federated learning with local and
    global representations, algorithm 1.

    Departures from the paper: the auxiliary losses of the local representations are left out, and
    an unseen client trains its own layers.
    """
    need(model, Model, "lg_fedavg")
    return trained_together(
        "lg_fedavg",
        split_network(model, shared=shared),
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        work=Work(batch_size, epochs, steps, adapt_epochs),
        weighting=weighting,
    )
