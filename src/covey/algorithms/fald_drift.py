"""The drift of clients in their local steps, and its effect on FA-LD's posterior.

Between two synchronisations client c walks with the gradient of its own f^c. At the end of a round
the mean of these gradients, each where its client has come to, differs from the gradient of f at
the mean of where they are. This difference b pulls the chains away from the posterior; over the
steps of a round it is about half as large as at its end.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.fald_walk import Down, Gradient, Walk, local_walk
from covey.core.algorithm import Chains, Posterior, Query
from covey.core.shard import Shard, all_rows
from covey.kernels.langevin_chains import each_chain

POINTS = 32  # where the drift is measured before a run, with noise that all clients share
_DRAWS = 256  # where it is measured after a run: the clients' own noise averages out
LARGEST = 0.1  # shift of a mean, in standard deviations, or change of one, without a warning
_FAR = 1e6  # where chains are taken to have diverged
_FULL = 300  # parameters up to which the whole covariance of the draws is used
_FEWEST = 50  # draws, for their covariance to mean something

AskDown: TypeAlias = Callable[[Down], PyTree]


class Ends(NamedTuple):
    """A client's terms of two means over clients: its chains after local steps, and the gradient of
    its f^c there.
    """

    beta: PyTree
    gradient: PyTree


class Drift(NamedTuple):
    """The effect of drift on the posterior, by parameter.

    Attributes:
        shift: Of the mean, in standard deviations.
        error: Standard error of the shift.
        wider: Relative change of the standard deviation along the principal axes.
    """

    shift: Float[np.ndarray, " d"]
    error: Float[np.ndarray, " d"]
    wider: Float[np.ndarray, " d"]


def moved(walk: Walk, gradient: Gradient, key: Key[Array, ""], down: Down, data: Shard) -> Ends:
    """A client's answer: where its chains end, and the gradient there."""
    beta, share = local_walk(walk, gradient, key, down, data)
    beta = _bounded(beta)
    pull = gradients(gradient, key, down._replace(theta=beta), data)
    return Ends(jax.tree.map(lambda leaf: share * leaf, beta), pull)


def gradients(gradient: Gradient, key: Key[Array, ""], down: Down, data: Shard) -> PyTree:
    """A client's answer: its term of the gradient of f at some points."""
    share, scale = data.count / down.examples, down.examples / jnp.maximum(data.count, 1)
    every, points = all_rows(data), jax.tree.leaves(down.theta)[0].shape[-1]
    found = each_chain(
        lambda key, theta: gradient(theta, every, scale), jax.random.split(key, points), down.theta
    )
    return jax.tree.map(lambda leaf: share * leaf, _bounded(found))


def _bounded(tree: PyTree) -> PyTree:
    """Chains that have diverged, as far away: a finite answer that shows it."""
    return jax.tree.map(lambda leaf: jnp.clip(jnp.nan_to_num(leaf, nan=_FAR), -_FAR, _FAR), tree)


def drift(ask_moved: AskDown, ask_gradient: AskDown, down: Down) -> Float[np.ndarray, "d points"]:
    """B at each of the points `down.theta`, in two questions."""
    ends = Ends(*ask_moved(down))
    together = ask_gradient(down._replace(theta=ends.beta))
    return _matrix(ends.gradient) - _matrix(together)


def effect(
    b: Float[np.ndarray, "d points"],
    points: Float[np.ndarray, "d points"],
    mean: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
) -> Drift:
    """The effect of a pull b on a posterior with this mean and covariance root root'.

    For a Gaussian of unit variances in z a pull b moves the mean by b, and one with derivative s
    along z adds s to the precision.
    """
    white, pull = np.linalg.solve(root, points - mean[:, None]), root.T @ b / 2
    count = pull.shape[1]
    design = np.column_stack([np.ones(count), white.T])
    if len(white) > count // 4:  # too many derivatives to be told apart
        design, derivative = design[:, :1], np.mean(pull * white, axis=1)
        fitted = np.linalg.lstsq(design, pull.T, rcond=None)[0]
    else:
        fitted = np.linalg.lstsq(design, pull.T, rcond=None)[0]
        derivative = np.diagonal(fitted[1:])
    left = pull - (design @ fitted).T
    sd = np.sqrt(np.sum(root**2, axis=1))
    shift, noise = -root @ fitted[0] / sd, (root @ left) / sd[:, None]
    return Drift(shift, noise.std(axis=1, ddof=1) / np.sqrt(count), -derivative / 2)


def with_drift_check(posterior: Posterior, walk: Walk, gradient: Gradient) -> Posterior:
    """The posterior with a check that asks how far clients drift apart at the newest draws."""
    chains = posterior.shared
    assert isinstance(chains, Chains)

    def check(state, spec, ask) -> None:
        count = int(min(state.ring.count, jax.tree.leaves(state.ring.draws)[0].shape[0]))
        draws = jax.tree.map(lambda leaf: leaf[:count], state.ring.draws)
        flat = _draws(draws)  # d, draws
        if flat.shape[1] < _FEWEST:
            return
        some = np.linspace(0, flat.shape[1] - 1, _DRAWS).astype(int)
        down = Down(_points(draws, some), state.shared_key, state.round, state.examples)
        b = drift(lambda sent: ask("moved", sent), lambda sent: ask("gradient", sent), down)
        mean, root = flat.mean(1), _root(flat)
        found = effect(b, flat[:, some], mean, root)
        _warn(found, walk.steps.local_steps)

    def answer_moved(key, sent, data):
        return moved(walk, gradient, key, Down(*sent), data)

    def answer_gradient(key, sent, data):
        return gradients(gradient, key, Down(*sent), data)

    queries: Mapping[str, Query] = {"moved": answer_moved, "gradient": answer_gradient}
    return posterior._replace(shared=chains._replace(check=check, queries=queries))


def _warn(found: Drift, local_steps: int) -> None:
    noise = 3 * float(np.max(found.error))
    worst, width = float(np.max(np.abs(found.shift))), float(np.max(np.abs(found.wider)))
    if max(worst, width) < LARGEST + noise:
        return
    warnings.warn(
        f"fald: clients drift apart in {local_steps} local steps, which moves means of the "
        f"posterior by about {worst:.1f} standard deviations and changes standard deviations by "
        f"about {width:.0%}; R-hat does not see it. Take local_steps=1 or a smaller step_size, or "
        "leave step_size out: then clients are kept together",
        stacklevel=4,
    )


def _matrix(tree: PyTree) -> Float[np.ndarray, "d points"]:
    """Values of all points, which are the last axis, as the columns of a matrix."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])


def _draws(draws: PyTree) -> Float[np.ndarray, "d draws"]:
    """Draws (size, ..., chains) as the columns of a matrix, chain by chain."""
    return _matrix(_flat(draws))


def _points(draws: PyTree, some: np.ndarray) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[..., some]), _flat(draws))


def _flat(draws: PyTree) -> PyTree:
    """(size, ..., chains) as (..., chains x size)."""

    def flat(leaf):
        moved = jnp.moveaxis(leaf, 0, -1)  # ..., chains, size
        return moved.reshape(*moved.shape[:-2], -1)

    return jax.tree.map(flat, draws)


def _root(draws: Float[np.ndarray, "d draws"]) -> Float[np.ndarray, "d d"]:
    """A factor of the draws' covariance; of its diagonal where there are many parameters."""
    if len(draws) > min(_FULL, draws.shape[1] // 4):
        return np.diag(np.maximum(draws.std(1, ddof=1), 1e-30))
    covariance = np.cov(draws).reshape(len(draws), len(draws))
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-60))
    correlation = covariance / np.outer(scale, scale)
    return scale[:, None] * np.linalg.cholesky(correlation + 1e-6 * np.eye(len(draws)))
