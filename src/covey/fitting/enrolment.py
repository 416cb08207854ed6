"""A site that comes later: its effects from the posterior, without a refit; or a refit that starts
at the present maximum.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from covey.fitting.design import Design, Rows
from covey.fitting.methods import DRAWS, method_of
from covey.fitting.prediction import Draws, effects_of_a_new_site
from covey.fitting.tables import Place, check_name, read_table
from covey.fitting.terms import Terms

if TYPE_CHECKING:
    from covey.core.algorithm import Algorithm
    from covey.fitting.result import Fit


def add_client(fit: "Fit", name: str, place: "Place | None", *, refit: bool) -> "Fit":
    """The fit with one more site; see `Fit.add_client`.

    Args:
        fit: The fit.
        name: The new site.
        place: Its table; None, or a table without rows, for a site without any.
        refit: Whether to fit again, with its rows among those of the others.
    """
    from covey.fitting.fit import fit_tables

    check_name(name)
    if name in fit.clients:
        raise ValueError(f"there is a site {name!r} already; sites are {', '.join(fit.clients)}")
    table = read_table(pd.DataFrame() if place is None else place, name)
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
    rows = rows if empty else fit.design.rows_of(table)
    drawn = personal_draws(fit, rows)
    size = len(table.frame)
    design = replace(
        fit.design,
        rows=fit.design.rows | {name: size},
        dropped=fit.design.dropped | {name: size - len(rows.y)},
        filled=fit.design.filled | {name: 0},
    )
    tables = None if fit.tables is None else fit.tables | ({} if empty else {name: table})
    return replace(
        fit, design=design, tables=tables, added=fit.added | {name: drawn}
    )


def personal_draws(fit: "Fit", rows: Rows) -> Draws:
    """Draws of a new site's effects given its rows, with draws of the shared parameters.

    Args:
        fit: The fit.
        rows: The site's rows; none for one without.
    """
    design, terms = fit.design, Terms.of(fit.design)
    if not len(rows.y) or not terms.effects:
        shared = fit.found.draws
        return effects_of_a_new_site(terms, shared, fit.seed + 1).thinned(DRAWS)
    import jax
    import jax.numpy as jnp

    from covey.core.algorithm import Empty
    from covey.core.shard import Rows as Pair
    from covey.core.shard import Shard

    method = method_of(design, fit.method, fit.estimate, fit.prior)
    draw = method.posterior.client
    assert draw is not None
    two = design.family == "bernoulli"
    y = rows.y.astype(np.int32 if two else np.float32)
    count = jnp.int32(len(y))
    data = Shard(Pair(jnp.asarray(rows.x, jnp.float32), jnp.asarray(y)), jnp.int32(0), count, len(y))
    key = jax.random.key(fit.seed + 1)

    @jax.jit
    def drawn(key: Any, published: Any, data: Any) -> Any:
        state = Empty() if fit.method == "marginal" else method.adapt(key, published, data)
        return draw(key, published, state, data, DRAWS)

    found = jax.device_get(drawn(key, fit.published, data))
    shared = terms.stacked({part: found[part] for part in found if part != "effects"})
    return Draws(shared, np.asarray(found["effects"], float))


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

    from covey.algorithms.marginal_state import Published
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
