"""Minibatch SGD across clients: one gradient a client a round.

The baseline that local steps are measured against (MB-SGD in Al-Shedivat et al. 2021, Woodworth et
al. 2020): every client returns the gradient of its mean loss at the broadcast parameters, and the
server takes one step along their average.

    client:  g_i = mean over a minibatch of grad(-log p(row | theta))
    server:  theta = server optimiser(theta, sum_i w_i g_i / sum_i w_i)
"""

import jax.numpy as jnp
import optax

from covey.algorithms.averaging import Info, Weighting, averaging
from covey.core.algorithm import Algorithm
from covey.core.shard import some_rows
from covey.kernels.descent import mean_gradient, schedule
from covey.models.model import Model


def mb_sgd(
    model: Model,
    *,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Minibatch SGD with any server optimiser (default: SGD 0.1); `batch_size=None` is the full
    gradient of each client.
    """
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=1, steps=1)
    optimizer = optax.sgd(0.1) if server_optimizer is None else server_optimizer

    def solve(key, parameters, data):
        loss, slope = gradient(parameters, some_rows(key, data, plan.batch_size))
        return slope, Info(loss, jnp.minimum(data.count, 1))

    return averaging("mb_sgd", model, solve, server_optimizer=optimizer, weighting=weighting)
