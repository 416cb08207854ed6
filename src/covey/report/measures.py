"""Sections from the metrics of a run: convergence, messages, the newest measures."""

from typing import Any

import numpy as np
import pandas as pd

from covey.report.content import Convergence, Fairness
from covey.report.figures import measures_of
from covey.report.words import spread_in_words

_SIZES = ["bytes_up", "bytes_down"]


def convergence_of(metrics: pd.DataFrame) -> Convergence | None:
    """The measures of a run by round.

    Args:
        metrics: One row per round, as `run.metrics`.

    Returns:
        The section; None before the first round.
    """
    if not len(metrics):
        return None
    sentences = [f"The run has had {int(metrics['round'].iloc[-1])} rounds."]
    for name in ("train_loss", "log_likelihood"):
        known: Any = metrics[name].dropna() if name in metrics else ()
        if len(known) > 1:
            sentences.append(
                f"The {name.replace('_', ' ')} went from {known.iloc[0]:.4g} to "
                f"{known.iloc[-1]:.4g}; the last round changed it by "
                f"{known.iloc[-1] - known.iloc[-2]:.2g}."
            )
    return Convergence(metrics, tuple(sentences))


def messages_of(metrics: pd.DataFrame, questions: pd.DataFrame) -> pd.DataFrame | None:
    """Messages by kind: those of the rounds, and those of each question beyond the rounds.

    Args:
        metrics: One row per round, as `run.metrics`.
        questions: One row per question, as `run.questions`.

    Returns:
        Columns message, times, clients, bytes_up, bytes_down and bytes_up_per_site; None where no
        sizes are known.

    Example:
        >>> metrics = pd.DataFrame({"clients": [2, 2], "bytes_up": [8, 8], "bytes_down": [4, 4]})
        >>> messages_of(metrics, pd.DataFrame())["bytes_up_per_site"].tolist()
        [8.0]
    """
    if not {"clients", *_SIZES} <= set(metrics.columns):
        return None
    kinds: list[tuple[str, Any]] = [("rounds", metrics)]
    if len(questions):
        kinds += [(f"question: {name}", of) for name, of in questions.groupby("question")]
    table = pd.DataFrame(
        [
            {
                "message": name,
                "times": len(sent),
                "clients": float(sent["clients"].mean()),
                **{size: sent[size].sum() for size in _SIZES},
            }
            for name, sent in kinds
        ]
    )
    table["bytes_up_per_site"] = table["bytes_up"] / np.maximum(table["clients"], 1)
    return table


def pooled_measures(metrics: pd.DataFrame) -> dict[str, float]:
    """The newest value of each measure over all rows, e.g. `validation_accuracy`."""
    names = [name for name in measures_of(metrics) if not name.startswith(("bits", "bytes"))]
    return {name: float(metrics[name].dropna().iloc[-1]) for name in names}


def fairness_of(clients: Any, split: str) -> Fairness | None:
    """The quality of the predictions for each site, by accuracy where there is one, else by
    likelihood.

    Args:
        clients: One row per site, as `run.clients`.
        split: The rows that were evaluated, e.g. "test".

    Returns:
        The section; None where no site has a measure.
    """
    measure = "accuracy" if "accuracy" in clients else "nll"
    if measure not in clients or not clients[measure].notna().any():
        return None
    words = spread_in_words(clients[measure], clients["name"], measure)
    return Fairness(clients.drop(columns="client"), measure, split, (f"On {split} rows, {words}",))
