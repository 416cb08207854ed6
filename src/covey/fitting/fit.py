"""`covey.fit`: a formula and one table per site."""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from covey.data.federated import FederatedData
from covey.fitting.cautions import collected, warn_of, warn_of_priors, warn_of_rows
from covey.fitting.checks import check_sums
from covey.fitting.combination import combine
from covey.fitting.description import Description, describe
from covey.fitting.design import Design, Rows
from covey.fitting.formula import Formula, parse
from covey.fitting.methods import Estimate, check_method, found_by, method_of
from covey.fitting.priors import LogPrior, Statistics, chosen_priors, printed, spread_of
from covey.fitting.tables import Table, TableSource, read_tables
from covey.fitting.tables_again import outcome_name
from covey.fitting.terms import Terms
from covey.fitting.uses import RULES, Missing

if TYPE_CHECKING:
    from covey.fitting.result import Fit


def fit(
    formula: str,
    data: "Mapping[str, TableSource] | TableSource | FederatedData",
    *,
    family: str | None = None,
    estimate: Estimate = "posterior",
    method: str = "marginal",
    priors: "Mapping[str, str] | str | Path | None" = None,
    missing: Missing = "drop",
    weights: str | None = None,
    client: str | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> "Fit":
    """Fit a regression with random effects to tables that stay with their owners.

    The formula is lme4's. Factor levels, means and standard deviations come from the sites'
    descriptions of their tables, estimates from sums over sites: both are those of the pooled
    table.

    Args:
        formula: Outcome, predictors and bar terms, e.g.
            "ill ~ age + sex + scale(chol) + C(cp) + (1 + age | hospital)". Bar terms: `(1 | g)`,
            `(1 + x | g)`, `(x || g)`, `(0 + x | g)`, where g are the sites; and `(1 | g/ward)` for
            groups inside of them. Also `x*z`, `x:z`, `I(x**2)`, `log(x)`, `offset(log(days))`, and
            as outcome `cbind(successes, failures)` or `p(successes, totals)`. Without a bar term it
            is a pooled regression. Words are factors without C().
        data: For each site's name a data frame or a file; a folder with one CSV or Parquet file per
            site; one table whose column g names the site; or `FederatedData`. Columns that the
            formula does not name are ignored.
        family: "gaussian", "bernoulli", "binomial", "poisson" or "negative_binomial". Default: for
            two values "bernoulli", of which the second in the order of the alphabet is the event;
            for cbind() and p() "binomial"; else "gaussian".
        estimate: "posterior" (default); "ml" for maximum likelihood; "reml" for Gaussian outcomes.
        method: "marginal" (default) integrates the effects out, in about a dozen rounds; "fedpop"
            and, without random effects, "fald" sample.
        priors: By term, e.g. {"age": "normal(0, 1)", "sd(Intercept)": "half_normal(1)"}, or a TOML
            file with such a table. Default: weakly informative ones, scaled by standard deviations
            over all sites; `fit.priors` shows them.
        missing: Treatment of rows with missing values (blank, NA, NaN, ?, null): "drop" leaves
            them out and counts them; "impute" fills in the mean over all sites or the most frequent
            level; "indicator" does so and adds a column that marks them.
        weights: Column of prior weights above 0. Default: all rows have weight 1.
        client: Column that names the site, for one table without a bar term.
        out: Folder to save the fit in, for `covey.load_fit`. Default: it is not saved.
        seed: Seed of everything random.
        progress: Show progress once the work takes more than two seconds.

    Returns:
        The fit: `summary()`, `effects()`, `predict()`, `add_client()`, `compare()`, `report()`.

    Raises:
        ValueError: The formula or a table is wrong; the message says where.

    Example:
        >>> import covey, numpy as np, pandas as pd
        >>> random, tables = np.random.default_rng(0), {}
        >>> for site in ["bern", "basel", "chur", "zug"]:
        ...     dose = random.normal(size=30)
        ...     gain = 2 * dose + random.normal() + random.normal(size=30)
        ...     tables[site] = pd.DataFrame({"gain": gain, "dose": dose})
        >>> found = covey.fit("gain ~ dose + (1 | site)", tables, estimate="ml", progress=False)
        >>> found.summary()["mean"].round(1).to_dict()
        {'Intercept': 0.1, 'dose': 2.0, 'sd(Intercept)': 1.0, 'sigma': 1.0}

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model.
    """
    parsed = parse(formula)
    if missing not in RULES:
        raise ValueError(f"missing must be one of {', '.join(RULES)}, got {missing!r}")
    label = client or next((b.within or b.group for b in parsed.bars), None)
    tables = read_tables(data, client=label, outcome=outcome_name(parsed))
    given = client or (label if _is_one_table(data) else None)
    data_path = str(Path(data).resolve()) if isinstance(data, (str, Path)) else None
    return fit_tables(
        parsed,
        tables,
        data_path=data_path,
        family=family,
        estimate=estimate,
        method=method,
        priors=priors,
        missing=missing,
        weights=weights,
        client=given,
        out=out,
        seed=seed,
        progress=progress,
    )


def _is_one_table(data: object) -> bool:
    if isinstance(data, (str, Path)):
        return not Path(data).is_dir()
    return isinstance(data, pd.DataFrame)


def fit_tables(
    formula: Formula,
    tables: dict[str, Table],
    *,
    family: str | None,
    estimate: Estimate,
    method: str,
    priors: "Mapping[str, str] | str | Path | None",
    missing: Missing,
    weights: str | None,
    client: str | None,
    out: str | Path | None,
    seed: int,
    progress: bool,
    data_path: str | None = None,
    start: object = None,
) -> "Fit":
    """The fit of a formula to tables that are read; see `fit`.

    Args:
        formula: The formula.
        tables: One per site.
        family: See `fit`, as for all others.
        estimate: What is estimated.
        method: The method's name.
        priors: By term, or a TOML file.
        missing: Treatment of missing values.
        weights: Column of prior weights.
        client: Name of the sites in the formula, where it is known.
        out: Folder to save the fit in.
        seed: Seed of everything random.
        progress: Whether to show progress.
        data_path: Source of the tables, to find them again.
        start: A fit to start from, whose maximum is near.
    """
    import covey
    from covey.fitting.enrolment import started_from
    from covey.fitting.result import Fit

    described = [
        describe(table, formula, missing=missing, weights=weights, client=client)
        for table in tables.values()
    ]
    options = {"missing": missing, "weights": weights, "client": client}
    design = combine(described, formula, family=family, **options)
    check_method(design, method, estimate, has_priors=priors is not None)
    if out is not None:
        _check_folder(Path(out))
    notes = warn_of(described, formula, family)
    rows = {name: design.rows_of(table) for name, table in tables.items()}
    digests = {name: one.digest for name, one in rows.items()}
    each = {name: Statistics.of(design, one) for name, one in rows.items()}
    statistics = reduce(add, each.values())
    check_sums(design, statistics, list(tables), estimate=estimate)
    notes += warn_of_rows(design, described, each, digests)
    chosen = chosen_priors(design, statistics, priors)
    prior = LogPrior.of(design, statistics, chosen)
    algorithm = method_of(design, method, estimate, prior)
    if isinstance(start, Fit):
        algorithm = started_from(algorithm, start, design)
    with collected(notes, Terms.of(design).parts):
        run = covey.run(
            algorithm,
            federated(design, rows),
            seed=seed,
            out=out,
            progress=progress,
            name=formula.text,
            settings=_settings(formula, family, estimate, method, missing, weights),
        )
        found = found_by(run, design, method)
    has_prior = estimate == "posterior" and method != "fedpop"
    if has_prior:
        notes += warn_of_priors(prior, design, found.draws)
    result = Fit(
        design=design,
        estimate=estimate,
        method=method,
        priors=printed(chosen) if has_prior else {},
        prior=prior,
        found=found,
        seed=seed,
        notes=tuple(notes),
        run=run,
        tables=tables,
        stored={
            "described": _size(described),
            "digests": digests,
            "outcomes": {name: one.outcome_digest for name, one in rows.items()},
            "spread": spread_of(design, statistics),
        }
        | ({} if data_path is None else {"data_path": data_path}),
    )
    if out is not None:
        result.save(out)
        result.report(Path(out) / "report.html")
    return result


def _check_folder(folder: Path) -> None:
    if folder.is_dir() and (found := sorted(path.name for path in folder.iterdir())):
        raise ValueError(
            f"{folder} is not empty: it holds {', '.join(found[:3])}; choose another --out (out=), "
            "or remove it"
        )


def federated(design: Design, rows: Mapping[str, Rows]) -> FederatedData:
    """The rows of sites as federated data.

    Args:
        design: The design.
        rows: Rows of each site.
    """
    from covey.core.shard import Rows as Pair

    x = np.concatenate([one.x for one in rows.values()])
    y = np.concatenate([one.y for one in rows.values()])
    two = design.family == "bernoulli"
    return FederatedData.from_rows(
        Pair(x, y.astype(np.int32) if two else y),
        [len(one.y) for one in rows.values()],
        names=list(rows),
        features=list(design.features),
        classes=2 if two else None,
    )


def _size(described: Sequence[Description]) -> float:
    """Bytes of an average description, as JSON."""
    texts = [json.dumps(one._asdict(), separators=(",", ":")) for one in described]
    return sum(map(len, texts)) / len(texts)


def _settings(formula, family, estimate, method, missing, weights) -> dict[str, dict[str, str]]:
    given = {"formula": formula.text, "family": family, "estimate": estimate, "missing": missing}
    known = {name: value for name, value in (given | {"weights": weights}).items() if value}
    return {"method": {"name": method}, "fit": known}
