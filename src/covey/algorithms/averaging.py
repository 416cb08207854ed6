"""Averages of clients' changes: what FedAvg and its relatives share, with the checks of their
options.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.algorithm import Aggregate, Algorithm, Empty, Local, no_state
from covey.core.shard import Shard
from covey.kernels.descent import Descent, Schedule, schedule
from covey.models.model import Model

Weighting = Literal["rows", "equal"]


class State(NamedTuple):
    """The server's state: the shared parameters and the memory of the server optimiser."""

    parameters: PyTree
    optimizer: PyTree


class Info(NamedTuple):
    """A client's report: the mean loss of its minibatches, and the number of its local steps."""

    train_loss: Float[Array, ""]
    local_steps: Int[Array, ""]


# (key, broadcast parameters, data) -> (Delta_i, info)
Solver = Callable[[Key[Array, ""], PyTree, Shard], tuple[PyTree, Info]]


def averaging(
    name: str,
    model: Model,
    solve: Solver,
    *,
    server_optimizer: optax.GradientTransformation | None,
    weighting: Weighting,
) -> Algorithm:
    """A method with one shared model, from its local solver.

        client:  Delta_i = what the client would subtract from theta,    m_i = its weight
        server:  Delta = sum_i w_i m_i Delta_i / sum_i w_i m_i
                 theta = server optimiser(theta, Delta)

    w_i is the inverse participation probability. The weight m_i is sent beside the upload, so that
    a lossy channel changes Delta_i and never m_i.

    Args:
        name: The method's name in reports.
        model: Model to train.
        solve: (key, broadcast parameters, data) -> (Delta_i, info): the local solver.
        server_optimizer: Optax optimiser that takes the averaged change as its gradient; None is
            the plain average.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. Its clients have no state.
    """
    check_weighting(weighting, name)
    optimizer = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", name)

    def client(key, parameters, state, data):
        delta, info = solve(key, parameters, data)
        return Local(delta, Empty(), info, client_weight(data, weighting))

    return Algorithm(
        name=name,
        init=lambda key, spec: first_state(optimizer, model.init(key, spec)),
        broadcast=lambda state: state.parameters,
        server=lambda key, state, aggregate: (server_step(optimizer, state, aggregate), Empty()),
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, parameters, client_state, x: model.predictive(parameters, x),
        adapt=no_state,
    )


def first_state(optimizer: optax.GradientTransformation, parameters: PyTree) -> State:
    """The server's state before the first round."""
    return State(parameters, optimizer.init(parameters))


def change(parameters: PyTree, end: Descent) -> tuple[PyTree, Info]:
    """Delta_i = theta - theta_i, and the report of the steps that led to theta_i."""
    delta = jax.tree.map(jnp.subtract, parameters, end.parameters)
    return delta, Info(end.loss, end.steps)


def client_weight(data: Shard, weighting: Weighting) -> Float[Array, ""]:
    """The weight of a client in the average."""
    return data.count.astype(float) if weighting == "rows" else jnp.ones(())


def mean_change(aggregate: Aggregate) -> PyTree:
    """The weighted mean of the uploads; zero in a round in which nobody had a row."""
    total = jnp.where(aggregate.weight > 0, aggregate.weight, 1.0)
    return jax.tree.map(lambda s: s / total, aggregate.weighted)


def server_step(
    optimizer: optax.GradientTransformation, state: State, aggregate: Aggregate
) -> State:
    """The server's step along the averaged change."""
    updates, memory = optimizer.update(mean_change(aggregate), state.optimizer, state.parameters)
    return State(optax.apply_updates(state.parameters, updates), memory)


def need_counts(method: str, **counts: int) -> None:
    """Raise a ValueError for a count that is not a whole number of at least 1."""
    for option, count in counts.items():
        if not isinstance(count, int | np.integer):
            raise ValueError(f"{method}: {option} must be a whole number, got {count!r}")
        if count < 1:
            raise ValueError(f"{method}: {option} must be at least 1, got {count}")


def need_positive(method: str, **values: int | float) -> None:
    """Raise a ValueError for a value that is not above 0 and finite."""
    for option, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{method}: {option} must be above 0 and finite, got {value:g}")


def local_work(
    method: str, *, batch_size: int | None, epochs: int, steps: int | None = None, prefix: str = ""
) -> Schedule:
    """The schedule of a client's local steps; errors name the method, and options by their prefix.

    Args:
        method: Name of the method, for messages.
        batch_size: Rows per minibatch; None uses all rows.
        epochs: Passes over the client's rows.
        steps: Minibatch steps instead of passes; None counts by passes.
        prefix: Prefix of the user's names of `epochs` and `steps`, e.g. "head_".
    """
    counts = {"batch_size": batch_size, f"{prefix}steps": steps}
    given = {option: count for option, count in counts.items() if count is not None}
    need_counts(method, **{f"{prefix}epochs": epochs}, **given)
    return schedule(batch_size=batch_size, epochs=epochs, steps=steps)


def optimizer_or(
    default: optax.GradientTransformation,
    given: optax.GradientTransformation | None,
    option: str,
    method: str,
    *,
    descends: bool = True,
) -> optax.GradientTransformation:
    """The optimiser that was given, checked, or the default.

    Args:
        default: The optimiser where none is given.
        given: The user's optimiser, or None.
        option: Name of the option, for messages.
        method: Name of the method, for messages.
        descends: Whether its updates must point against the gradient; False for a transformation
            whose result the method subtracts itself.
    """
    if given is None:
        return default
    if not isinstance(given, optax.GradientTransformation):
        called = getattr(given, "__name__", None)
        what = f"the function {called} itself; call it, e.g. optax.{called}(0.1)"
        raise ValueError(
            f"{method}: {option} must be an Optax optimiser such as optax.sgd(0.1), got "
            f"{what if called else repr(given)}"
        )
    if descends and _climbs(given):
        raise ValueError(
            f"{method}: {option} moves along the gradient, so that the loss rises: its step size "
            "is negative, or it has none; give a positive one, e.g. optax.sgd(0.1)"
        )
    return given


def _climbs(optimizer: optax.GradientTransformation) -> bool:
    """Whether the first update for a gradient of ones is positive in every entry."""
    parameters, gradient = jnp.zeros(2), jnp.ones(2)
    with jax.ensure_compile_time_eval():
        try:
            update, _ = optimizer.update(gradient, optimizer.init(parameters), parameters)
        except (AttributeError, KeyError, TypeError, ValueError):
            return False  # it is for one tree of parameters only, or needs the loss: none is here
        return bool(np.all(np.asarray(update) > 0))


def check_weighting(weighting: str, method: str = "") -> None:
    """Raise a ValueError for a weighting that is not offered."""
    if weighting not in ("rows", "equal"):
        named = f"{method}: " if method else ""
        raise ValueError(f"{named}weighting must be 'rows' or 'equal', got {weighting!r}")
