"""FedAvg, and adaptive federated optimisation."""

import optax

from covey.algorithms.averaging import Weighting, averaging, change, local_work, optimizer_or
from covey.core.algorithm import Algorithm
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
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
    """FedAvg: clients train the broadcast model locally and the server averages their changes.

        client:  theta_i = local optimiser from theta on D_i,    Delta_i = theta - theta_i
        server:  Delta = sum_i w_i Delta_i / sum_i w_i
                 theta = server optimiser(theta, Delta)

    w_i is the number of rows of client i (or 1), times the inverse of its participation
    probability. Server SGD with step 1 is FedAvg; with momentum it is FedAvgM; Adam, Yogi and
    Adagrad give FedAdam, FedYogi and FedAdagrad. The loss is minus the mean log-likelihood of a
    client's rows; a prior that the model may have is not part of it.

    Args:
        model: Model to train, from `covey.models`.
        client_optimizer: Optax optimiser of the clients' local steps, initialised anew in every
            round. Default: SGD with step size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change Delta as its gradient.
            Default: SGD with step size 1, the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round (E in the paper). More passes need fewer
            rounds, but move the fixed point away from the optimum where clients differ.
        steps: Minibatch steps per round, in place of `epochs`, so that large and small clients work
            equally long.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. Its clients have no state.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.fedavg(covey.models.linear()), data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: McMahan et al. (2017), Communication-efficient learning of deep networks from
    decentralized data, algorithm 1; with a server optimiser, Reddi et al. (2021), Adaptive
    federated optimization, algorithm 1.

    Departures from the papers: the server optimiser's step is Optax's, whose Adam corrects the bias
    of its moments where FedAdam does not.
    """
    need(model, Model, "fedavg")
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("fedavg", batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "fedavg")

    def solve(key, parameters, data):
        return change(parameters, descend(key, data, gradient, optimizer, plan, parameters))

    return averaging("fedavg", model, solve, server_optimizer=server_optimizer, weighting=weighting)
