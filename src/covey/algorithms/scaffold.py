"""SCAFFOLD: FedAvg with control variates against the drift of clients."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from covey.algorithms import averaging
from covey.algorithms.averaging import change, local_work, need_positive, optimizer_or
from covey.algorithms.clustered import whole_gradient
from covey.core import tree
from covey.core.algorithm import Algorithm, Empty, Local
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class State(NamedTuple):
    """x with the memory of the server optimiser, the control variate c, and 1 / b."""

    shared: averaging.State
    control: PyTree
    share: Float[Array, ""]


class Pair(NamedTuple):
    """A model with a control variate. Broadcast: x and c. Upload: x - y_i and c_i' - c_i."""

    model: PyTree
    control: PyTree


def scaffold(
    model: Model,
    *,
    step_size: int | float = 0.1,
    server_optimizer: optax.GradientTransformation | None = None,
    control: Literal["path", "gradient"] = "path",
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
) -> Algorithm:
    """SCAFFOLD: FedAvg whose clients correct their drift by control variates.

        client:  y_i = K steps y <- y - eta (g_i(y) - c_i + c) from x
                 c_i' = c_i - c + (x - y_i) / (K eta), or grad F_i(x);    sends x - y_i, c_i' - c_i
        server:  x = server optimiser(x, mean of x - y_i);    c = c + (1/b) sum of c_i' - c_i

    The sum is over the clients heard, b counts all, K the steps that client i has made. c_i moves
    by what was sent, also through a lossy channel: c is always the mean of all c_i.
    The fixed point is the minimum of the mean of the clients' losses F_i; that of FedAvg is not.

    Args:
        model: Model to train, from `covey.models`.
        step_size: Step size of the clients' SGD (eta in the paper).
        server_optimizer: Optax optimiser of the averaged change. Default: the plain average.
        control: Whether c_i is renewed from the local steps ("path", option II of the paper) or
            from a pass over all rows at x ("gradient", option I).
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.

    Returns:
        A method for `covey.run`. A client's state is c_i; an upload has two vectors.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.scaffold(covey.models.linear(), epochs=5), data, rounds=20)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Karimireddy et al. (2020), SCAFFOLD: stochastic controlled averaging, algorithm 1.

    Departures from the paper: a server optimiser other than SGD is an addition, and c_i moves by
    the change that was sent, after compression.
    """
    need(model, Model, "scaffold")
    need_positive("scaffold", step_size=step_size)
    if control not in ("path", "gradient"):
        raise ValueError(f"scaffold: control must be 'path' or 'gradient', got {control!r}")
    plan = local_work("scaffold", batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", "scaffold")
    gradient = mean_gradient(model.log_likelihood)

    def init(key, spec):
        first = averaging.first_state(optimizer, model.init(key, spec))
        return State(first, optax.tree.zeros_like(first.parameters), jnp.ones(()) / spec.clients)

    def client(key, down, own, data):
        def corrected(y, batch):
            loss, by_rows = gradient(y, batch)
            return loss, jax.tree.map(lambda g, i, c: g - i + c, by_rows, own, down.control)

        end = descend(key, data, corrected, optax.sgd(step_size), plan, down.model)
        delta, info = change(down.model, end)
        path = step_size * jnp.maximum(end.steps, 1)
        moved = jax.tree.map(lambda d, c: d / path - c, delta, down.control)
        if control == "gradient":
            moved = optax.tree.sub(whole_gradient(gradient, down.model, data), own)
        moved = tree.where(end.steps > 0, moved, optax.tree.zeros_like(moved))
        return Local(Pair(delta, moved), own, info)

    def server(key, state, aggregate):
        deltas = aggregate._replace(weighted=aggregate.weighted.model)
        shared = averaging.server_step(optimizer, state.shared, deltas)
        moved = optax.tree.scale(state.share, aggregate.plain.control)
        return State(shared, optax.tree.add(state.control, moved), state.share), Empty()

    return Algorithm(
        name="scaffold",
        init=init,
        broadcast=lambda state: Pair(state.shared.parameters, state.control),
        server=server,
        init_client=lambda key, down, data: optax.tree.zeros_like(down.control),
        client=client,
        commit=lambda own, sent: optax.tree.add(own, sent.control),
        predict=lambda key, down, own, x: model.predictive(down.model, x),
        adapt=lambda key, down, data: optax.tree.zeros_like(down.control),
    )
