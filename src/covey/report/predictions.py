"""Sections from predictions of training rows: calibration, errors, fairness. Rows enter in bins."""

from typing import Any

import numpy as np
import pandas as pd

from covey.report.bins import equal_bins, interval_of_mean, share_interval
from covey.report.content import Calibration, Errors, Fairness
from covey.report.words import spread_in_words

_TWO = "bernoulli"
_ALL = "all sites"
_QUANTILES = {"q05": 0.05, "q25": 0.25, "q75": 0.75, "q95": 0.95}


def calibration_of(predictions: pd.DataFrame, family: str) -> Calibration:
    """Predictions against outcomes in bins of equally many rows.

    Args:
        predictions: One row per training row: client, observed, mean, q05, q25, q75, q95.
        family: Family of the outcome.

    Returns:
        For two labels, predicted probabilities and observed shares; for others means of both, and
        how many outcomes lie inside the predictive intervals at each site.
    """
    known = _known(predictions)
    rows = []
    for _, inside in known.groupby(equal_bins(known["mean"].to_numpy())):
        observed, count = inside["observed"], len(inside)
        if family == _TWO:
            low, high = share_interval(np.array([observed.sum()]), np.array([count]))
            ends = float(low[0]), float(high[0])
        else:
            ends = interval_of_mean(observed)
        mean = {"predicted": inside["mean"].mean(), "observed": observed.mean()}
        rows.append(mean | {"q05": ends[0], "q95": ends[1], "count": count})
    bins = pd.DataFrame(rows)
    gap = ((bins["predicted"] - bins["observed"]).abs() * bins["count"]).sum() / len(known)
    if family == _TWO:
        sentence = (
            f"On training rows, predicted probabilities and observed shares differ by {gap:.3f} on "
            "average over bins."
        )
        return Calibration(bins, "predicted probability", "observed share", None, (sentence,))
    coverage = _coverage(known)
    inside = coverage.iloc[-1]
    sentence = (
        f"On training rows, the 90 % predictive interval holds {inside['90 %']:.1%} of the "
        f"outcomes and the 50 % interval {inside['50 %']:.1%}."
    )
    return Calibration(bins, "predicted mean", "observed mean", coverage, (sentence,))


def errors_of(
    predictions: pd.DataFrame, family: str, levels: tuple[str, str] | None = None
) -> Errors:
    """Errors of predictions.

    Args:
        predictions: As for `calibration_of`.
        family: Family of the outcome.
        levels: The two outcomes in words, the event last. Default: "0" and "1".

    Returns:
        For two labels a confusion table at probability 0.5, and sensitivity and specificity by
        site; for others residuals in bins of the prediction.
    """
    known = _known(predictions)
    if family != _TWO:
        left = known.assign(residual=known["observed"] - known["mean"])
        rows = []
        for _, inside in left.groupby(equal_bins(left["mean"].to_numpy())):
            spread = {name: inside["residual"].quantile(at) for name, at in _QUANTILES.items()}
            mean = {"predicted": inside["mean"].mean(), "mean": inside["residual"].mean()}
            rows.append(mean | spread | {"count": len(inside)})
        deviation = float(left["residual"].std())
        sentence = f"Residuals have a standard deviation of {deviation:.3g}."
        return Errors(residuals=pd.DataFrame(rows), sentences=(sentence,))
    no, yes = levels or ("0", "1")
    event, called = known["observed"] > 0.5, known["mean"] > 0.5
    confusion = pd.DataFrame(
        {
            "observed": [no, yes],
            f"predicted {no}": [int((~event & ~called).sum()), int((event & ~called).sum())],
            f"predicted {yes}": [int((~event & called).sum()), int((event & called).sum())],
        }
    )
    right = float((event == called).mean())
    measures = _by_site(
        known.assign(event=event, right=event == called),
        lambda one: {
            "sensitivity": one["right"][one["event"]].mean(),
            "specificity": one["right"][~one["event"]].mean(),
        },
    )
    sentences = (
        f"Where {yes} is predicted for a probability above 0.5, {right:.1%} of the rows are right.",
        "These are the training rows: expect somewhat less on new ones.",
    )
    return Errors(confusion, None, measures, sentences)


def fairness_of_predictions(predictions: pd.DataFrame, family: str) -> Fairness:
    """The quality of the predictions for each site, on its training rows.

    Args:
        predictions: As for `calibration_of`.
        family: Family of the outcome.

    Returns:
        Accuracy, Brier score and log loss for two labels; else the root of the mean squared error
        and the share of outcomes inside the 90 % interval.
    """
    known = _known(predictions)
    clients: Any = _by_site(known, lambda one: measures_of_rows(one, family)).rename(
        columns={"client": "name", "rows": "train_rows"}
    )
    measure = "accuracy" if family == _TWO else "rmse"
    words = spread_in_words(clients[measure], clients["name"], measure)
    return Fairness(clients, measure, "training", (f"On training rows, {words}",))


def measures_of_rows(rows: Any, family: str) -> dict[str, float]:
    """Measures of predictions, as for `fairness_of_predictions`.

    Args:
        rows: Some of the predictions.
        family: Family of the outcome.
    """
    mean, observed = rows["mean"], rows["observed"]
    if family == _TWO:
        chance = np.clip(np.where(observed > 0.5, mean, 1 - mean), 1e-12, 1)
        return {
            "accuracy": float((chance > 0.5).mean()),
            "brier": float(((mean - observed) ** 2).mean()),
            "log_loss": float(-np.log(chance).mean()),
        }
    return {
        "rmse": float(np.sqrt(((mean - observed) ** 2).mean())),
        "inside 90 %": float(observed.between(rows["q05"], rows["q95"]).mean()),
    }


def _known(predictions: pd.DataFrame) -> Any:
    """Rows with an outcome and a prediction."""
    return predictions.dropna(subset=["observed", "mean"]).reset_index(drop=True)


def _coverage(known: Any) -> Any:
    def shares(one: Any) -> dict[str, float]:
        return {
            "50 %": float(one["observed"].between(one["q25"], one["q75"]).mean()),
            "90 %": float(one["observed"].between(one["q05"], one["q95"]).mean()),
        }

    every = pd.DataFrame([{"client": _ALL, "rows": len(known), **shares(known)}])
    return pd.concat([_by_site(known, shares), every], ignore_index=True)


def _by_site(known: Any, measures: Any) -> Any:
    return pd.DataFrame(
        [
            {"client": site, "rows": len(one), **measures(one)}
            for site, one in known.groupby("client", sort=False)
        ]
    )
