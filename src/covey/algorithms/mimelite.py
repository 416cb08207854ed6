"""MimeLite: FedAvg whose clients use the server's momentum as it is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from covey.algorithms import averaging
from covey.algorithms.averaging import (
    Weighting,
    change,
    check_weighting,
    client_weight,
    local_work,
    mean_change,
    need_positive,
    optimizer_or,
)
from covey.algorithms.clustered import whole_gradient
from covey.core.algorithm import Algorithm, Empty, Local, no_state
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Up(NamedTuple):
    """x - y_i, and the gradient of all the client's rows at x."""

    delta: PyTree
    gradient: PyTree


def mimelite(
    model: Model,
    *,
    step_size: int | float = 0.1,
    momentum: int | float = 0.9,
    statistics: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """MimeLite: local steps with the momentum of the server, which stays fixed during a round.

        client:  y_i = steps y <- y - eta ((1 - beta) g_i(y) + beta s) from x
                 sends x - y_i and grad F_i(x), of all its rows
        server:  x = mean of y_i;    s = (1 - beta) c + beta s,  c = mean of grad F_i(x)

    So clients move as a server with momentum would, and do not drift by their own momentum.
    With beta = 0 this is FedAvg.

    Args:
        model: Model to train, from `covey.models`.
        step_size: Step size of the clients' steps (eta in the paper).
        momentum: Share of the old momentum (beta in the paper), at least 0 and below 1.
        statistics: Optax transformation in place of momentum, e.g. `optax.scale_by_adam()`: its
            memory is the server's, and clients apply it without changing it. Default: momentum.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round; the gradient at x takes one more.
        steps: Minibatch steps per round, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`, without client state. An upload has two vectors.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.mimelite(covey.models.linear()), data, rounds=60, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Karimireddy et al. (2021), Breaking the centralized barrier for cross-device
    federated learning, algorithm 1 without the control variate.

    Departures from the paper: clients count by their rows unless `weighting="equal"`.
    """
    need(model, Model, "mimelite")
    check_weighting(weighting, "mimelite")
    frozen = frozen_steps("mimelite", step_size, momentum, statistics)
    plan = local_work("mimelite", batch_size=batch_size, epochs=epochs, steps=steps)
    gradient = mean_gradient(model.log_likelihood)

    def client(key, down, state, data):
        end = descend(key, data, gradient, frozen.local(down), plan, down.parameters)
        delta, info = change(down.parameters, end)
        whole = whole_gradient(gradient, down.parameters, data)
        return Local(Up(delta, whole), Empty(), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        mean = mean_change(aggregate)
        return frozen.moved(state, mean.delta, mean.gradient), Empty()

    return Algorithm(
        name="mimelite",
        init=lambda key, spec: averaging.first_state(frozen.optimizer, model.init(key, spec)),
        broadcast=lambda state: state,
        server=server,
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, down, client_state, x: model.predictive(down.parameters, x),
        adapt=no_state,
    )


class Frozen(NamedTuple):
    """An optimiser whose memory is the server's."""

    optimizer: optax.GradientTransformation

    def local(self, down: averaging.State) -> optax.GradientTransformation:
        """Steps with the memory of the broadcast, which they do not change."""

        def update(updates, state, params=None):
            steps, _ = self.optimizer.update(updates, down.optimizer, params)
            return steps, state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    def moved(self, state: averaging.State, delta: PyTree, gradient: PyTree) -> averaging.State:
        """The model x minus the mean change, and the memory after the mean gradient at x."""
        _, memory = self.optimizer.update(gradient, state.optimizer, state.parameters)
        return averaging.State(jax.tree.map(jnp.subtract, state.parameters, delta), memory)


def frozen_steps(
    name: str,
    step_size: int | float,
    momentum: int | float,
    statistics: optax.GradientTransformation | None,
) -> Frozen:
    """The optimiser of Mime and MimeLite, its options checked."""
    need_positive(name, step_size=step_size)
    if not 0 <= momentum < 1:
        raise ValueError(f"{name}: momentum must be at least 0 and below 1, got {momentum:g}")
    average = optax.ema(momentum, debias=False)
    chosen = optimizer_or(average, statistics, "statistics", name, descends=False)
    return Frozen(optax.chain(chosen, optax.scale(-step_size)))
