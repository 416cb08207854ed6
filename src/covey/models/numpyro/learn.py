"""The roles of a NumPyro model's sites, found by runs with other rows, clients or effects."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from covey.core.shard import Rows
from covey.models.numpyro.program import (
    Program,
    Site,
    Trace,
    Values,
    log_density,
    log_prob,
    predictive_of,
    transform_of,
    unconstrained,
)
from covey.models.predictive import Categorical


class _Pair(NamedTuple):
    """A value of a site in two runs, equal where it does not depend on what the runs differ in."""

    one: Array
    other: Array

    def same(self) -> bool:
        return self.one.shape == self.other.shape and np.allclose(
            self.one, self.other, rtol=1e-3, atol=1e-3, equal_nan=True
        )


class _Look(NamedTuple):
    """The program as shapes show it, how log-densities and deterministic values change with rows
    and with effects, and which values belong to columns of x.
    """

    program: Program
    densities: dict[str, _Pair]
    by_rows: dict[str, _Pair]
    by_effects: dict[str, _Pair]
    by_columns: dict[str, Array]


def learned(program: Program, plate: str | None) -> Program:
    """The program with all that it needs to know of its sites; a model that does not fit raises a
    ValueError that says why.
    """
    found = eqx.filter_jit(
        lambda: _look(program, plate)
    )()  # op by op, every small operation would be compiled on its own
    for site, pair in found.densities.items():
        if not pair.same():
            raise ValueError(
                f"{program.name}: the distribution of {site!r} depends on the rows, but clients "
                "have other rows and one prior; a term with columns of x belongs into the "
                "distribution of the outcome"
            )
    program = found.program
    deterministic = [site for site, pair in found.by_rows.items() if pair.same()]
    own = {
        site: axis
        for site, axis in program.own.items()
        if site in (*program.effects, *deterministic)
    }
    common = [site for site in deterministic if site not in own and found.by_effects[site].same()]
    described = (*program.shared, *common, *own)
    columns = tuple(site for site in described if found.by_columns.get(site, np.False_))
    return program._replace(
        own=own, common=dict.fromkeys((*program.shared, *common)), columns=columns
    )


def _look(program: Program, plate: str | None) -> _Look:
    name = program.name
    base = _tried(program, 1, {})
    latent = _latent(name, base, plate)
    observed = _observed(name, base)
    values = {site: unconstrained(base[site]) for site in latent}
    effects = {
        site: values[site].shape for site in sorted(latent) if _frames(base[site], plate)
    }  # JAX sorts dictionaries too
    shared = tuple(site for site in latent if site not in effects)
    deterministic = [site for site in base if base[site]["type"] == "deterministic"]

    more_rows = _tried(program, 3, values)
    for site in latent:
        if _shape(base[site]) != _shape(more_rows[site]):
            raise ValueError(
                f"{name}: the latent site {site!r} has a value for each row; effects are a "
                "client's, not a row's"
            )
    row_axis = _row_axis(name, base[observed], more_rows[observed])
    _need_outcomes(program, more_rows[observed])

    own: dict[str, int] = {}
    if plate is not None:
        two = _tried(program, 2, {site: values[site] for site in shared}, clients=2)
        _need_plate(name, base, two, plate, shared)
        axes = {
            site: _changed(_shape(base[site]), _shape(two[site]))
            for site in (*effects, *deterministic)
        }
        own = {site: axis for site, axis in axes.items() if axis is not None}
    moved = _tried(
        program, 1, {site: u + 1 if site in effects else u for site, u in values.items()}
    )

    def pairs(other: Trace) -> dict[str, _Pair]:
        return {
            site: _Pair(jnp.asarray(base[site]["value"]), jnp.asarray(other[site]["value"]))
            for site in deterministic
        }

    return _Look(
        program._replace(
            shared=shared,
            effects=effects,
            own=own,
            observed=observed,
            row_axis=row_axis,
            sites=tuple(site for site in base if base[site]["type"] == "sample"),
        ),
        {
            site: _Pair(log_density(base[site], u), log_density(more_rows[site], u))
            for site, u in values.items()
        },
        by_rows=pairs(more_rows),
        by_effects=pairs(moved),
        by_columns={}
        if program.spec.features is None
        else _by_columns(program, base, own, observed, values),
    )


def _tried(program: Program, count: int, given: Values, clients: int = 1) -> Trace:
    """The model on the example row, or on several rows that differ from it and from each other."""
    if count == 1:
        return program.run(program.rows(1), given, clients=clients, strategy=_somewhere)
    classes = program.spec.classes
    x = jax.tree.map(lambda leaf: _varied(leaf, count), program.example().x)
    y = jax.tree.map(lambda leaf: _varied(leaf, count), program.example().y)
    if classes is not None:
        y = jax.tree.map(lambda leaf: leaf % classes, y)
    return program.run(Rows(x, y), given, clients=clients, strategy=_somewhere)


def _varied(value: Any, count: int) -> Array:
    """Values of the same kind: halves of a number, which keep its sign, and the next integers."""
    value = jnp.asarray(value)
    step = jnp.arange(1, count + 1).reshape(-1, *(1,) * value.ndim)
    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.where(value == 0, step / 2, value * 0.5**step).astype(value.dtype)
    if value.dtype == jnp.bool_:
        return value ^ (step % 2 == 1)
    return value + step.astype(value.dtype)


def _by_columns(
    program: Program, base: Trace, own: Mapping[str, int], observed: str, values: Values
) -> dict[str, Array]:
    """Whether a site has one value per column of x.

    A latent one has where the outcome's dependence on value j vanishes with column j; a
    deterministic one where value j depends on value j of such a site, and on no other of it.
    """
    row = program.example()
    columns = jnp.size(row.x)
    if jnp.ndim(row.x) != 1:
        return {}

    def is_vector(site: str) -> bool:
        shape = _shape(base[site])
        axis = own.get(site)
        return (shape if axis is None else _without(shape, axis)) == (columns,)

    vectors = [site for site in base if site != observed and is_vector(site)]
    sites = [site for site in vectors if site in values and values[site].size == columns]
    filled = jnp.where(jnp.asarray(row.x) == 0, 1, jnp.asarray(row.x))

    def gradients(kept: Array) -> Values:
        rows = Rows(jnp.where(kept, filled, 0)[None], jnp.asarray(row.y)[None])
        return jax.grad(lambda at: jnp.sum(log_prob(program.run(rows, at)[observed])))(values)

    even = jnp.arange(columns) % 2 == 0
    seen = [(kept, gradients(kept)) for kept in (even, ~even)]
    found = {
        site: jnp.all(jnp.stack([(g[site].reshape(-1) != 0) == kept for kept, g in seen]))
        for site in sites
    }

    def value_of(site: str, at: Values) -> Array:
        return jnp.asarray(program.run(program.rows(1), at)[site]["value"])

    for site in vectors:
        if sites and base[site]["type"] == "deterministic":
            jacobian = jax.jacrev(lambda at, site=site: value_of(site, at).reshape(-1))(values)
            elementwise = [
                found[source]
                & jnp.all((jacobian[source].reshape(columns, columns) != 0) == jnp.eye(columns))
                for source in sites
            ]
            found[site] = jnp.any(jnp.stack(elementwise))
    return found


def _somewhere(site: Site) -> Array:
    """A value without drawing it, which would take long to compile; not zero, which could hide what
    depends on it.
    """
    transform = transform_of(site)
    return transform(jnp.full(transform.inverse_shape(site["fn"].shape()), 0.5))


def _latent(name: str, found: Trace, plate: str | None) -> list[str]:
    """The latent sites, where all are such that a federated method can use them."""
    for site in found.values():
        kind = site["type"]
        if kind == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise ValueError(
                f"{name}: plate {site['name']!r} is subsampled; leave it whole, methods draw "
                "minibatches themselves"
            )
        if kind in ("param", "mutable"):
            raise ValueError(
                f"{name}: {site['name']!r} is a numpyro.{kind}, which has no prior; use "
                "numpyro.sample, with dist.ImproperUniform where the prior is flat"
            )
        if kind == "sample" and not site["is_observed"] and site["fn"].support.is_discrete:
            raise ValueError(
                f"{name}: the latent site {site['name']!r} is discrete and has no gradient; sum "
                "over it in the model"
            )
        if len(_frames(site, plate)) > 1:
            raise ValueError(
                f"{name}: {site['name']!r} is inside two plates called {plate!r}; clients have "
                "one plate"
            )
    plates = [site["name"] for site in found.values() if site["type"] == "plate"]
    if plate is not None and plate not in plates:
        raise ValueError(
            f"{name}: there is no plate called {plate!r} among its plates {plates}; put the "
            f"effects of a client into numpyro.plate({plate!r}, clients), or give the name of "
            "yours: plate="
        )
    return [
        site["name"]
        for site in found.values()
        if site["type"] == "sample" and not site["is_observed"]
    ]


def _observed(name: str, found: Trace) -> str:
    observed = [
        site["name"] for site in found.values() if site["type"] == "sample" and site["is_observed"]
    ]
    factors = [site for site in observed if isinstance(found[site]["fn"], dist.Unit)]
    if factors:
        raise ValueError(
            f"{name}: factor {factors[0]!r} belongs to no row and no site; write it as the "
            "distribution of a site"
        )
    if len(observed) != 1:
        raise ValueError(
            f"{name}: one observed site is needed, the outcomes as obs=y, but there are "
            f"{observed or 'none'}"
        )
    return observed[0]


def _need_plate(name: str, base: Trace, two: Trace, plate: str, shared: Iterable[str]) -> None:
    """The plate is as long as there are clients, and nothing outside of it is."""
    for found, clients in ((base, 1), (two, 2)):
        sizes = {frame.size for site in found.values() for frame in _frames(site, plate)} | {
            found[plate]["args"][0]
        }
        if sizes != {clients}:
            raise ValueError(
                f"{name}: plate {plate!r} has size {max(sizes - {clients})} where the model is "
                f"called with clients={clients}; write numpyro.plate({plate!r}, clients)"
            )
    for site in shared:
        if _shape(base[site]) != _shape(two[site]):
            raise ValueError(
                f"{name}: {site!r} has a value for each client but is outside of plate {plate!r}; "
                "put it inside"
            )


def _row_axis(name: str, one: Site, three: Site) -> int:
    shape = log_prob(three).shape
    axis = _changed(log_prob(one).shape, shape)
    if axis is None or shape[axis] != 3:
        raise ValueError(
            f"{name}: the observed site {three['name']!r} has log-densities of shape {shape} for "
            "3 rows, but one per row is needed, so that rows can be taken one by one; is there a "
            "to_event, or a sum, over rows?"
        )
    return axis


def _need_outcomes(program: Program, site: Site) -> None:
    """Labels where the data have classes, numeric outcomes where they have not."""
    found = predictive_of(site, 3)
    classes = found.log_probability.shape[-1] if isinstance(found, Categorical) else None
    if found is not None and classes != program.spec.classes:
        said = "a number" if classes is None else f"one of {classes} labels"
        raise ValueError(
            f"{program.name}: the observed site {site['name']!r} is {said}, but these data have "
            f"classes={program.spec.classes}"
        )


def _frames(site: Site, plate: str | None) -> list[Any]:
    return [frame for frame in site.get("cond_indep_stack", ()) if frame.name == plate]


def _shape(site: Site) -> tuple[int, ...]:
    """The shape in the model, to which a given latent value may be broadcast."""
    return site["fn"].shape() if site["type"] == "sample" else jnp.shape(site["value"])


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """A shape without one of its axes, counted from the end."""
    at = len(shape) + axis
    return (*shape[:at], *shape[at + 1 :])


def _changed(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The only axis, counted from the end, along which two shapes differ."""
    if len(one) != len(other):
        return None
    axes = [-axis for axis in range(1, len(one) + 1) if one[-axis] != other[-axis]]
    return axes[0] if len(axes) == 1 else None
