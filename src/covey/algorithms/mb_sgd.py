"""Minibatch SGD across clients: one gradient per client and round."""

import jax.numpy as jnp
import optax

from covey.algorithms.averaging import Info, Weighting, averaging, local_work
from covey.core.algorithm import Algorithm
from covey.core.shard import some_rows
from covey.kernels.descent import mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


def mb_sgd(
    model: Model,
    *,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Minibatch SGD: clients send one gradient per round and the server steps along their mean.

        client:  g_i = mean over a minibatch of grad(-log p(row | theta))
        server:  theta = server optimiser(theta, sum_i w_i g_i / sum_i w_i)

    w_i is the number of rows of client i (or 1), times the inverse of its participation
    probability. The baseline that methods with local steps are compared with: with all rows and
    all clients it is gradient descent on the pooled rows, and its fixed point is their optimum.

    Args:
        model: Model to train, from `covey.models`.
        server_optimizer: Optax optimiser of the averaged gradient. Default: SGD with step size 0.1.
        batch_size: Rows of each client's minibatch, drawn without replacement; None, the default,
            uses all its rows.
        weighting: Whether gradients count by the client's training rows ("rows") or equally
            ("equal").

    Returns:
        A method for `covey.run`, without client state.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=6, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.mb_sgd(covey.models.linear()), data, rounds=100, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Woodworth et al. (2020), Minibatch vs local SGD for heterogeneous distributed
    learning; MB-SGD in Al-Shedivat et al. (2021), Federated learning via posterior averaging.

    Departures from the paper: clients count by their rows unless `weighting="equal"`, and the
    server takes any Optax optimiser.
    """
    need(model, Model, "mb_sgd")
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("mb_sgd", batch_size=batch_size, epochs=1, steps=1)
    optimizer = optax.sgd(0.1) if server_optimizer is None else server_optimizer

    def solve(key, parameters, data):
        loss, by_parameters = gradient(parameters, some_rows(key, data, plan.batch_size))
        return by_parameters, Info(loss, jnp.minimum(data.count, 1))

    return averaging("mb_sgd", model, solve, server_optimizer=optimizer, weighting=weighting)
