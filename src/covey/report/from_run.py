"""The report of a run, of any method, from its posterior, metrics, messages and ledger."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from covey.report import page
from covey.report.bins import FEWEST_ROWS, at_least, share_interval
from covey.report.content import (
    Calibration,
    Content,
    Fairness,
    NewSite,
    Privacy,
    Scale,
    Settings,
    Traffic,
)
from covey.report.measures import convergence_of, fairness_of, messages_of
from covey.report.posterior_parts import PosteriorParts, posterior_parts
from covey.report.units import in_bytes
from covey.report.words import listed

SCALES: dict[str, Scale] = {
    "bernoulli": "odds ratio",
    "binomial": "odds ratio",
    "poisson": "rate ratio",
    "negative_binomial": "rate ratio",
}


def write(run: Any, path: Path, *, settings: str = "", finished: bool = True) -> None:
    """Write the page of a run.

    Args:
        run: A `covey.Run`.
        path: The HTML file.
        settings: Text of its configuration. Default: none is shown.
        finished: Whether the run is at its end; before that, its posterior is not drawn and its
            unseen clients are not evaluated.
    """
    content = content_of(run, settings=settings, finished=finished)
    page.write(content, path)


def content_of(
    run: Any,
    *,
    settings: str = "",
    finished: bool = True,
    family: str | None = None,
) -> Content:
    """The content of the report of a run.

    Args:
        run: A `covey.Run`.
        settings: Text of its configuration. Default: none is shown.
        finished: Whether to draw the posterior where the method has one, and to evaluate the
            unseen clients. An approximate posterior asks all clients for sums. Default: yes.
        family: Family of the outcome, e.g. "poisson", which says whether coefficients are log odds
            or log rates. Default: found from the labels or the configuration where it is clear.

    Returns:
        The content; sections that the run has nothing for are None.
    """
    scale = SCALES.get(family or _family(run, settings), "coefficient")
    parts = posterior_parts(run, scale) if finished else PosteriorParts()
    fairness, calibration = _evaluated(run)
    new_site = _new_site(run, parts.new_site) if finished else None
    traffic, privacy = _traffic(run), privacy_of(run)
    names = [run.data.name_of(at) for at in range(run.data.clients)]
    rows = int(np.sum(run.data.counts("train")))
    sentences = (
        f"{run.data.clients} sites with {rows} training rows took part in {run.round} rounds of "
        f"{run.method.name}: {listed(names)}. No row left a site.",
        *parts.sentences,
        *(() if fairness is None else fairness.sentences[:1]),
        *(() if new_site is None else new_site.sentences[:1]),
        *(() if traffic is None else traffic.sentences[:1]),
        *(() if privacy is None else privacy.sentences[:1]),
    )
    return Content(
        title=str(run.name),
        subtitle=f"{run.method.name}, {run.data.clients} sites, {run.round} rounds",
        facts=_facts(run, rows, traffic),
        sentences=sentences,
        cautions=parts.cautions,
        shared=parts.shared,
        sites=parts.sites,
        new_site=new_site,
        calibration=calibration,
        draws=parts.draws,
        traffic=traffic,
        privacy=privacy,
        fairness=fairness,
        convergence=convergence_of(run.metrics),
        settings=Settings(_settings(run, settings), settings),
    )


def _facts(run: Any, rows: int, traffic: Traffic | None) -> tuple[tuple[str, str], ...]:
    facts = [
        ("sites", str(run.data.clients)),
        ("training rows", str(rows)),
        ("rounds", str(run.round)),
        ("method", run.method.name),
    ]
    if traffic is not None:
        each = traffic.messages["bytes_up"].sum() / run.data.clients
        facts.append(("sent per site", in_bytes(each)))
    return tuple(facts)


def _family(run: Any, settings: str) -> str:
    """The family of the outcome, where labels or the configuration tell."""
    if run.data.spec.classes == 2:
        return "bernoulli"
    model = re.search(r"^\[model\]\s*\nname = \"(\w+)\"", settings, re.MULTILINE)
    name = model[1] if model else ""
    known = sorted(SCALES, key=len, reverse=True)  # negative_binomial before binomial
    return next((family for family in known if family in name), "gaussian")


def _evaluated(run: Any) -> tuple[Fairness | None, Calibration | None]:
    """The quality of predictions for each site, and calibration, where the run was evaluated."""
    if not any(name.startswith(f"{run.split}_") for name in run.metrics.columns):
        return None, None
    evaluation = run.evaluation
    fairness = fairness_of(evaluation.clients, run.split)
    if fairness is None or "ece" not in evaluation.metrics:
        return fairness, None
    errors = evaluation.calibration_errors
    calibration = Calibration(
        _bins(evaluation.reliability()),
        predicted="confidence in the predicted label",
        observed="share of right predictions",
        sentences=(
            f"On {run.split} rows the confidence in a prediction and the share of right ones "
            f"differ by {errors.pooled:.3f} on average, and by {errors.mean:.3f} in the mean over "
            "sites.",
        ),
    )
    return fairness, calibration


def _bins(table: pd.DataFrame) -> pd.DataFrame:
    """Bins of a reliability diagram, joined to at least ten rows each, with intervals."""
    filled = table[table["count"] > 0]
    count = np.asarray(filled["count"])
    group = at_least(count, FEWEST_ROWS)
    sums = pd.DataFrame(
        {
            "predicted": np.asarray(filled["confidence"]) * count,
            "observed": np.asarray(filled["accuracy"]) * count,
            "count": count,
        }
    ).groupby(group)
    total: Any = sums.sum()
    low, high = share_interval(total["observed"].to_numpy(), total["count"].to_numpy())
    bins = total[["predicted", "observed"]].div(total["count"], axis="index")
    return bins.assign(q05=low, q95=high, count=total["count"]).reset_index(drop=True)


def _new_site(run: Any, drawn: NewSite | None) -> NewSite | None:
    """The population of sites, and the sites that were held out."""
    if run.unseen is None:
        return drawn
    evaluation = run.unseen_evaluation
    measures = evaluation.clients.drop(columns="client")
    shown = ", ".join(f"{name} {value:.3g}" for name, value in evaluation.pooled.items())
    sentence = (
        f"Held out from the run, then adapted to their training rows and judged on their test "
        f"rows: {listed(list(measures['name']))} ({shown})."
    )
    before = NewSite() if drawn is None else drawn
    return NewSite(before.effects, measures, (sentence, *before.sentences))


def parts_of_upload(run: Any) -> pd.DataFrame | None:
    """The parts of what one site sends in one round: part, shape, values."""
    leaves = jax.tree_util.tree_leaves_with_path(run.upload)
    rows = [
        {
            "part": jax.tree_util.keystr(path, simple=True, separator=".") or "values",
            "shape": " x ".join(map(str, leaf.shape)) or "one value",
            "values": int(np.prod(leaf.shape)),
        }
        for path, leaf in leaves
    ]
    return pd.DataFrame(rows) if rows else None


def _traffic(run: Any) -> Traffic | None:
    messages: Any = messages_of(run.metrics, run.questions)
    if messages is None:
        return None
    parts: Any = parts_of_upload(run)
    values = 0 if parts is None else int(parts["values"].sum())
    total = messages["bytes_up"].sum()
    sentence = (
        f"In each round a site sent {values} values computed from its rows, never a row: "
        f"{in_bytes(total / max(run.data.clients, 1))} per site in all."
    )
    more = (
        "An upload can still tell something about single rows; a privacy budget bounds how much."
        if run.ledger is None
        else "The privacy budget below bounds what uploads can tell about single rows."
    )
    return Traffic(parts, messages, sentences=(sentence, more))


def privacy_of(run: Any) -> Privacy | None:
    """The privacy budget of a run; None where it has none."""
    if run.ledger is None:
        return None
    budget, spent = run.ledger.budget, run.ledger.spent(run.round)
    names = [f"epsilon_{name}" for name in spent if f"epsilon_{name}" in run.metrics]
    by_round = run.metrics[["round", *names]].rename(
        columns={name: name.removeprefix("epsilon_") for name in names}
    )
    kept = f"epsilon {spent[budget.kept_by]:.4g} at delta {budget.delta:g}, by {budget.kept_by}"
    sentences = [f"The uploads of all rounds have revealed at most {kept}, of any one row."]
    if budget.epsilon is not None:
        left = run.ledger.left(run.round)
        sentences.append(f"The budget is {budget.epsilon:g}; it allows {left} more rounds.")
    if budget.earlier_rounds:
        sentences.append(f"{budget.earlier_rounds} earlier rounds on the same rows are counted.")
    table = pd.DataFrame({"accountant": list(spent), "epsilon": list(spent.values())})
    return Privacy(table, by_round, budget.epsilon, tuple(sentences))


def _settings(run: Any, settings: str) -> pd.DataFrame:
    """Seed, method, and versions and digests as the configuration records them."""
    rows = [("method", run.method.name), ("seed", str(run.seed)), ("rounds", str(run.round))]
    _, _, recorded = settings.partition("[environment]\n")
    rows += [
        (name.strip(), value.strip().strip('"'))
        for name, equals, value in (line.partition("=") for line in recorded.splitlines())
        if equals
    ]
    return pd.DataFrame(rows, columns=["setting", "value"])
