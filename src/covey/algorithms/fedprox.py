"""FedProx: FedAvg with a proximal term."""

import math

import jax
import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Weighting, averaging, change, local_work, optimizer_or
from covey.core.algorithm import Algorithm
from covey.kernels.descent import Gradient, descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


def fedprox(
    model: Model,
    *,
    proximal: int | float,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedProx: FedAvg with a proximal term that keeps clients near the broadcast model.

    A client minimises its mean loss F_i plus a penalty on the distance to the broadcast theta,

        h_i(y) = F_i(y) + (mu / 2) ||y - theta||^2,

    by local steps from theta, and the server averages the changes as in FedAvg. With mu = 0 this is
    FedAvg.

    Args:
        model: Model to train, from `covey.models`.
        proximal: Strength of the penalty (mu in the paper), at least 0. Larger values mean less
            client drift and slower progress.
        client_optimizer: Optax optimiser of the local steps. SGD needs a step size well below
            2 / mu. Default: SGD with step size 0.1, or 1 / mu where that is smaller.
        server_optimizer: Optax optimiser that takes the averaged change as its gradient. Default:
            the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. Its clients have no state.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=5, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.fedprox(covey.models.linear(), proximal=0.5, epochs=3)
        >>> run = covey.run(method, data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Li et al. (2020), Federated optimization in heterogeneous networks, algorithm 2.

    Departures from the paper: a client's problem is solved inexactly by a given number of passes or
    steps, not up to a gamma criterion.
    """
    need(model, Model, "fedprox")
    if not 0 <= proximal < math.inf:
        raise ValueError(f"fedprox: proximal must be at least 0 and finite, got {proximal:g}")
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("fedprox", batch_size=batch_size, epochs=epochs, steps=steps)
    stable = optax.sgd(0.1 if proximal <= 10 else 1 / proximal)
    optimizer = optimizer_or(stable, client_optimizer, "client_optimizer", "fedprox")

    def solve(key, anchor, data):
        near = with_penalty(gradient, proximal, anchor)
        return change(anchor, descend(key, data, near, optimizer, plan, anchor))

    return averaging(
        "fedprox", model, solve, server_optimizer=server_optimizer, weighting=weighting
    )


def with_penalty(gradient: Gradient, proximal: int | float, anchor: PyTree) -> Gradient:
    """The gradient of the loss plus (mu / 2) ||y - anchor||^2; the loss is reported without the
    penalty.
    """

    def penalised(parameters, batch):
        loss, by_loss = gradient(parameters, batch)
        return loss, jax.tree.map(
            lambda g, y, a: g + proximal * (y - a), by_loss, parameters, anchor
        )

    return penalised
