"""A site that comes later: its effects from the posterior, without a refit; or a refit that starts
at the present maximum.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from covey.fitting.cautions import warn_of_a_new_site
from covey.fitting.description import describe
from covey.fitting.design import Design, Rows
from covey.fitting.groups import with_groups
from covey.fitting.methods import DRAWS, Estimate, method_of, mixed_model
from covey.fitting.prediction import Draws, effects_of_a_new_site
from covey.fitting.priors import LogPrior, Statistics
from covey.fitting.tables import Site, Table, TableSource, check_name, read_table, word
from covey.fitting.terms import Terms

if TYPE_CHECKING:
    from covey.core.algorithm import Algorithm
    from covey.core.shard import Shard
    from covey.fitting.result import Fit


def add_client(fit: "Fit", name: Site, source: "TableSource | None", *, refit: bool) -> "Fit":
    """The fit with one more site; see `Fit.add_client`.

    Args:
        fit: The fit.
        name: The new site.
        source: Its table; None, or a table without rows, for a site without any.
        refit: Whether to fit again, with its rows among those of the others.
    """
    from covey.fitting.fit import fit_tables

    name = word(name)
    check_name(name)
    if name in fit.clients:
        raise ValueError(f"there is a site {name!r} already; sites are {', '.join(fit.clients)}")
    table = read_table(pd.DataFrame() if source is None else source, name)
    if refit:
        return fit_tables(
            fit.design.formula,
            fit.all_tables() | {name: table},
            family=fit.design.family,
            estimate=fit.estimate,
            method=fit.method,
            priors=fit.priors or None,
            missing=fit.design.missing,
            weights=fit.design.weights,
            client=fit.design.client,
            out=None,
            seed=fit.seed,
            progress=False,
            start=fit,
        )
    empty = not len(table.frame)
    rows = Rows(np.zeros((0, len(fit.design.features))), np.zeros(0), np.zeros(0, int))
    notes: list[str] = []
    if not empty:
        rows = fit.design.rows_of(table)
        known = fit.stored.get("digests", {})
        twin = next((site for site in known if known[site] == rows.digest), None)
        means = dict(zip(fit.design.columns, fit.prior.means, strict=True))
        notes = warn_of_a_new_site(
            fit.design, name, Statistics.of(fit.design, rows), means, twin if len(rows.y) else None
        )
    # Whoever was added before, a site of this name has the same draws.
    drawn = personal_draws(fit, {name: rows}, first=_AFTER_ALL + zlib.crc32(name.encode()) // 4)
    size = len(table.frame)
    design = replace(
        fit.design,
        rows=fit.design.rows | {name: size},
        dropped=fit.design.dropped | {name: size - len(rows.y)},
        filled=fit.design.filled | {name: 0 if empty else _filled(fit.design, table)},
    )
    tables = None if fit.tables is None else fit.tables | ({} if empty else {name: table})
    stored = dict(fit.stored)
    if not empty:
        stored["digests"] = stored.get("digests", {}) | {name: rows.digest}
    if table.path is not None and not empty:
        paths = stored.get("added_paths", {})
        stored["added_paths"] = paths | {name: str(table.path.resolve())}
    said = (*fit.notes, *notes)
    return replace(
        fit, design=design, tables=tables, added=fit.added | drawn, stored=stored, notes=said
    )


def _filled(design: Design, table: Table) -> int:
    """The count of missing values of a table that are filled in."""
    if design.missing == "drop":
        return 0
    described = describe(
        table,
        design.formula,
        missing=design.missing,
        weights=design.weights,
        client=design.client,
    )
    return sum(described.missing.get(name, 0) for name in design.fills)


def personal_draws(fit: "Fit", rows: Mapping[str, Rows], *, first: int = 0) -> dict[str, Draws]:
    """Draws of sites' effects given their rows, with draws of the shared parameters, in pairs. Each
    site can do this alone, and sends nothing.

    With the marginal method, draw d of every site goes with the same shared parameters.

    Args:
        fit: The fit.
        rows: The sites' rows; a site may have none.
        first: Index of the first of these sites among all. Sites with different indices have
            independent effects, given the shared parameters.
    """
    terms = Terms.of(fit.design)
    if not terms.effects and fit.design.group is None:
        return {}
    found = {}
    for at, (name, one) in enumerate(rows.items(), start=first):
        seed = fit.seed + 1 + at
        if terms.effects and (len(one.y) or fit.method == "marginal"):
            drawn = _given_rows(fit, one, seed)
        else:
            drawn = effects_of_a_new_site(terms, fit.found.draws, seed).thinned(DRAWS)
        found[name] = with_groups(fit.design, one, drawn, seed)
    return found


def _given_rows(fit: "Fit", rows: Rows, seed: int) -> Draws:
    import jax

    program = personal_program(fit.design, fit.method, fit.estimate, fit.prior)
    keys = jax.random.key(fit.seed), jax.random.key(seed)
    found = jax.device_get(program(keys, fit.published, shard_of(fit.design, rows)))
    terms = Terms.of(fit.design)
    shared = terms.stacked({part: found[part] for part in found if part != "effects"})
    return Draws(shared, np.asarray(found["effects"], float))


def personal_program(design: Design, method: str, estimate: Estimate, prior: LogPrior) -> Callable:
    """(keys, published, shard) -> draws of a site; compiled once for all sites of similar size. The
    first key is for the shared parameters, the second for the site's effects.

    Args:
        design: The design.
        method: The method's name.
        estimate: What is estimated.
        prior: The log prior.
    """
    key = (mixed_model(design), design.correlated, method, estimate, prior)
    if key not in _PROGRAMS:
        import jax
        import jax.numpy as jnp

        from covey.core.algorithm import Empty

        made = method_of(design, method, estimate, prior)
        draw = made.posterior.client
        assert draw is not None

        def drawn(keys: Any, published: Any, data: Any) -> Any:
            # The marginal method draws effects given the rows; a chain has to converge first.
            if method == "marginal":
                return draw(jnp.stack(keys), published, Empty(), data, DRAWS)
            state = made.adapt(keys[1], published, data)
            return draw(keys[1], published, state, data, DRAWS)

        _PROGRAMS[key] = jax.jit(drawn)
    return _PROGRAMS[key]


_AFTER_ALL = 2**20  # index of sites that are added, above those of all that take part
_PROGRAMS: dict[Any, Callable] = {}
_SMALL = 1024  # rows; larger sites have programs of their own size


def shard_of(design: Design, rows: Rows) -> "Shard":
    """A site's rows as methods take them, filled up to one of few sizes.

    Sites of up to `_SMALL` rows are filled up to the largest of them: one compiled program serves
    all of them and the sites that join later, and values do not depend on the size.

    Args:
        design: The design.
        rows: The rows.
    """
    import jax.numpy as jnp

    from covey.core.shard import Rows as Pair
    from covey.core.shard import Shard, bucket_size

    sizes = [design.rows[site] - design.dropped.get(site, 0) for site in design.rows]
    count, largest = len(rows.y), min(max(sizes, default=2), _SMALL)
    size = bucket_size(max(count, largest, 2))
    kind = np.int32 if design.family == "bernoulli" else np.float32
    x, y = np.zeros((size, rows.x.shape[1]), np.float32), np.zeros(size, kind)
    x[:count], y[:count] = rows.x, rows.y
    pair = Pair(jnp.asarray(x), jnp.asarray(y))
    return Shard(pair, jnp.int32(0), jnp.int32(count), size)


def started_from(method: "Algorithm", before: "Fit", design: Design) -> "Algorithm":
    """The method, started at the maximum of another fit where it has the same parameters.

    Args:
        method: The method.
        before: The fit.
        design: The new design.
    """
    if before.method != "marginal" or before.design.features != design.features:
        return method
    import jax.numpy as jnp

    from covey.algorithms.marginal.state import Published
    from covey.kernels.newton import begin

    published = before.published
    assert isinstance(published, Published)
    old = published.state

    def init(key, spec):
        new = method.init(key, spec)
        return new._replace(
            climb=begin(jnp.asarray(old.climb.point), jnp.asarray(old.climb.frame)),
            unit=jnp.asarray(old.unit),
            scales=old.scales,
            variance=jnp.asarray(old.variance),
            level=jnp.asarray(old.level),
            basis=old.basis,
            round=jnp.int32(1),
        )

    return method._replace(init=init)
