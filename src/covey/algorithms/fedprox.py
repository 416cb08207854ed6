"""FedProx: FedAvg whose clients are tied to the broadcast parameters.

Li et al. (2020), "Federated optimization in heterogeneous networks", algorithm 2. Each client
minimises

    h_i(theta) = F_i(theta) + (mu / 2) ||theta - theta_t||^2

by local steps; mu = 0 is FedAvg. A client that is given few steps solves its problem inexactly, as
the paper allows.
"""

import jax
import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Weighting, averaging, change
from covey.core.algorithm import Algorithm
from covey.kernels.descent import Gradient, descend, mean_gradient, schedule
from covey.models.model import Model


def fedprox(
    model: Model,
    *,
    proximal: float,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedProx; `proximal` is mu, the other options are those of FedAvg."""
    if proximal < 0:
        raise ValueError(f"proximal must be at least 0, got {proximal}")
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def solve(key, anchor, data):
        return change(
            anchor, descend(key, data, tied(gradient, proximal, anchor), optimizer, plan, anchor)
        )

    return averaging(
        "fedprox", model, solve, server_optimizer=server_optimizer, weighting=weighting
    )


def tied(gradient: Gradient, proximal: int | float, anchor: PyTree) -> Gradient:
    """The gradient of the loss plus (mu / 2) ||theta - anchor||^2; the loss that it gives is that
    without the tie.
    """

    def tied_gradient(parameters, batch):
        loss, slope = gradient(parameters, batch)
        return loss, jax.tree.map(lambda g, p, a: g + proximal * (p - a), slope, parameters, anchor)

    return tied_gradient
