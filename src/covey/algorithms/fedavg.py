"""FedAvg, and adaptive federated optimisation.

McMahan et al. (2017), "Communication-efficient learning of deep networks from decentralized data",
algorithm 1, in the generalised form of Reddi et al. (2021), "Adaptive federated optimization",
algorithm 1: the averaged change of the clients is a pseudo-gradient for a server optimiser.

    client:  theta_i = local optimiser from theta on D_i,    Delta_i = theta - theta_i
    server:  Delta = sum_i w_i Delta_i / sum_i w_i,          theta = server optimiser(theta, Delta)

w_i is the number of rows of client i (or 1), times the inverse of its participation probability.
Server SGD with step 1 is FedAvg; with momentum FedAvgM; Adam, Yogi and Adagrad give FedAdam,
FedYogi and FedAdagrad.

Example:
    method = covey.fedavg(covey.models.logistic(), client_optimizer=optax.sgd(0.1),
    server_optimizer=optax.adam(0.01))
"""

import optax

from covey.algorithms.averaging import Weighting, averaging, change
from covey.core.algorithm import Algorithm
from covey.kernels.descent import descend, mean_gradient, schedule
from covey.models.model import Model


def fedavg(
    model: Model,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedAvg with any client and server optimiser (default: SGD 0.1 at the client, the plain
    average at the server).

    A client makes `epochs` passes over its rows a round, or `steps` minibatch steps where given.
    `batch_size=None` uses all rows at each step. `weighting` averages clients by their rows, or
    equally.
    """
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def solve(key, parameters, data):
        return change(parameters, descend(key, data, gradient, optimizer, plan, parameters))

    return averaging("fedavg", model, solve, server_optimizer=server_optimizer, weighting=weighting)
