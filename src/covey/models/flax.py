"""Flax NNX modules as models; needs `pip install 'covey[flax]'`."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.models.model import Model, scaled
from covey.models.networks import Outcome, of_outputs


def from_flax(
    build: Callable[[Any], Any],
    *,
    outcome: Outcome = "classes",
    scale: float | None = None,
    batched: bool = True,
    name: str | None = None,
) -> Model:
    """Any Flax NNX module as a model: its variables of type `nnx.Param` are the parameters.

    Parameters are nested dictionaries by the names of the module's attributes, so that
    `split_network(model, personal="output")` finds a layer by its name. The module is in evaluation
    mode: dropout does nothing. A module with statistics that move as it is called, such as
    `nnx.BatchNorm`, is refused: clients would have to share them. Pixels (uint8) arrive scaled to
    [0, 1].

    Args:
        build: (nnx.Rngs) -> nnx.Module, e.g. a module's class. The module maps rows to outputs.
        outcome: Meaning of the output. "classes" (the default): one logit per class, or a single
            one where there are two; "number": the mean of a Gaussian; "count": the log rate of a
            Poisson.
        scale: Standard deviation of the Gaussian where the outcome is a number. Default: 1.
        batched: Whether the module maps all rows at once, as Flax's own layers do (the default), or
            one row.
        name: Name in reports. Default: the name of `build`.

    Returns:
        A model for any method that takes a `Model`.

    Raises:
        ModuleNotFoundError: Flax is not installed.
        ValueError: The module has variables that are neither parameters nor random keys.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx  # doctest: +SKIP
        >>> model = from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs))  # doctest: +SKIP
        >>> model.predictive(params, jnp.ones((2, 4))).mean.shape  # doctest: +SKIP
        (2, 3)
    """
    nnx = _nnx()
    label = name or getattr(build, "__name__", "module").strip("<>")

    def parts(key: Key[Array, ""]) -> tuple[Any, Any, Any]:
        module = build(nnx.Rngs(key))
        module.eval()
        return nnx.split(module, nnx.Param, ...)

    graph, empty, rest = parts(jax.random.key(0))
    _refuse_state(nnx, label, rest)

    def output(
        params: PyTree, x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows *outputs"]:
        variables = jax.tree.map(lambda leaf: leaf, empty)  # a copy, which is filled in place
        nnx.replace_by_pure_dict(variables, params)
        module = nnx.merge(graph, variables, rest)
        return (module if batched else jax.vmap(module))(scaled(x))

    def start(key: Key[Array, ""]) -> PyTree:
        return nnx.to_pure_dict(parts(key)[1])

    return of_outputs(label, outcome, scale, start, output)


def _nnx() -> Any:
    try:
        from flax import nnx  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "from_flax needs Flax: pip install 'covey[flax]'", name=missing.name
        ) from missing
    return nnx


def _refuse_state(nnx: Any, label: str, rest: Any) -> None:
    """An error for variables that a call changes: random keys of dropout are not used."""
    _, others = nnx.split_state(rest, nnx.RngState, ...)
    found = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(others))
    if found:
        path = jax.tree_util.keystr(found[0][0], simple=True, separator=".")
        raise ValueError(
            f"{label}: {path} is neither a parameter (nnx.Param) nor a random key; modules with "
            "other state, such as nnx.BatchNorm, cannot be used: take nnx.LayerNorm or "
            "nnx.GroupNorm"
        )
