"""Reliability bins against bins counted by hand."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from covey.core.metrics import Calibration, Mean
from covey.data.federated import FederatedData
from covey.inference import calibration_errors, reliability
from covey.runs.evaluation import Evaluation

# Two clients in bins of a fifth: one is too sure, one too timid. (confidence, right) by row.
SURE = [(0.95, 1), (0.85, 0), (0.90, 0), (0.55, 1)]
TIMID = [(0.85, 1), (0.95, 1), (0.50, 1), (0.30, 0)]


def binned(rows, mask=None):
    confidence, correct = (np.array(column) for column in zip(*rows, strict=True))
    keep = np.ones(len(rows), bool) if mask is None else mask
    return Calibration.of(
        jnp.asarray(confidence), jnp.asarray(correct, bool), jnp.asarray(keep), bins=5
    )


@pytest.fixture(scope="module")
def stacked():
    each = [binned(SURE), binned(TIMID), binned(SURE, np.zeros(4, bool))]
    return Calibration(*(np.stack(leaves) for leaves in zip(*each, strict=True)))


@pytest.fixture(scope="module")
def evaluation(stacked):
    data = FederatedData.from_clients(
        {name: (np.zeros((4, 1)), np.arange(4) % 2) for name in ("sure", "timid", "empty")},
        classes=2,
    )
    return Evaluation(1, "test", data, {"nll": Mean(jnp.ones(3), jnp.ones(3)), "ece": stacked})


def test_a_clients_table_is_what_one_counts_by_hand(evaluation):
    expected = pd.DataFrame(
        {
            "lower": [0.0, 0.2, 0.4, 0.6, 0.8],
            "upper": [0.2, 0.4, 0.6, 0.8, 1.0],
            "confidence": [np.nan, np.nan, 0.55, np.nan, 0.9],
            "accuracy": [np.nan, np.nan, 1.0, np.nan, 1 / 3],
            "count": [0, 0, 1, 0, 3],
        }
    )
    pd.testing.assert_frame_equal(
        evaluation.reliability("sure"), expected, check_exact=False, rtol=1e-6
    )


def test_the_pooled_table_has_all_rows(evaluation):
    table = evaluation.reliability()
    np.testing.assert_allclose(
        table["confidence"],
        [np.nan, 0.3, 0.525, np.nan, (0.95 + 0.85 + 0.9 + 0.85 + 0.95) / 5],
        rtol=1e-6,
    )
    np.testing.assert_allclose(table["accuracy"], [np.nan, 0, 1, np.nan, 3 / 5])
    assert table["count"].tolist() == [0, 1, 2, 0, 5]


def test_errors_pooled_and_by_client(evaluation, stacked):
    """Of a row: the gap of its bin. Too sure and too timid cancel in the pool, not in the mean of
    clients.
    """
    found = evaluation.calibration_errors
    sure = (1 * 0.45 + 3 * (0.9 - 1 / 3)) / 4
    timid = (1 * 0.3 + 1 * 0.5 + 2 * 0.1) / 4
    np.testing.assert_allclose(found.clients, [sure, timid, np.nan], rtol=1e-6)
    assert found.mean == pytest.approx((sure + timid) / 2)
    assert found.pooled == pytest.approx((1 * 0.3 + 2 * 0.475 + 5 * 0.3) / 8)
    assert found.pooled == pytest.approx(evaluation.pooled["ece"])
    assert found.pooled < found.mean
    assert np.isnan(calibration_errors(Calibration(*(leaf[2:] for leaf in stacked))).mean)


def test_without_labels_there_is_no_calibration(evaluation, stacked):
    numbers = Evaluation(1, "test", evaluation.data, {"mse": Mean(jnp.ones(3), jnp.ones(3))})
    with pytest.raises(ValueError, match="the metrics are mse"):
        numbers.reliability()
    with pytest.raises(ValueError, match="no client 'nobody'"):
        evaluation.reliability("nobody")
    with pytest.raises(ValueError, match="stacked over clients"):
        calibration_errors(binned(SURE))
    with pytest.raises(ValueError, match=r"got shape \(1, 3, 5\)"):
        reliability(Calibration(*(leaf[None] for leaf in stacked)))
