"""Maximum likelihood of linear mixed models: `covey.marginal` in a dozen rounds against
MixedLM of statsmodels on pooled rows, real data in their own units.

Programs are compiled before the clock starts; compiling takes longer than any of these fits. lme4
fits the first model in 0.19 s (measured once; it is not run here).
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks.timing import interleaved, report
from covey import models
from covey.algorithms.marginal import marginal
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.engines.simulate import Simulation

CASES = {
    "radon_us, intercept and slope": ("radon_us", ("floor_measure",)),
    "inst_eval, intercept": ("inst_eval", ()),
}
MOST_ROUNDS = 30


def complete(name: str) -> FederatedData:
    """The rows without missing values."""
    data = load(name)
    x, y = np.asarray(data.rows.x), np.asarray(data.rows.y)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    there = np.isfinite(x).all(axis=1)
    return FederatedData.from_arrays(x[there], y[there], owner[there], features=data.features)


def by_sums(data: FederatedData, slopes: tuple[str, ...]):
    """(): a fit round by round, until the maximum is found."""
    engine = Simulation(marginal(models.mixed_linear(slopes=slopes)), data, seed=0)

    def fit() -> float:
        state = engine.start()
        for _ in range(MOST_ROUNDS):
            state, _ = engine.advance(state, 1)
            if bool(state.server.settled):
                break
        return float(state.server.log_likelihood)

    return fit


def by_statsmodels(data: FederatedData, slopes: tuple[str, ...]):
    """(): the same model by MixedLM."""
    mixed = importlib.import_module("statsmodels.regression.mixed_linear_model")

    x, y = np.asarray(data.rows.x, np.float64), np.asarray(data.rows.y, np.float64)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    one = np.ones((len(y), 1))
    columns = [(data.features or ()).index(slope) for slope in slopes]

    def fit() -> float:
        model = mixed.MixedLM(
            y, np.hstack([one, x]), owner, exog_re=np.hstack([one, x[:, columns]])
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(model.fit(reml=False).llf)

    return fit


def main() -> None:
    if importlib.util.find_spec("statsmodels") is None:
        print("\nMixed models: install statsmodels to compare with it")
        return
    for title, (name, slopes) in CASES.items():
        data = complete(name)
        contenders: dict[str, Callable[[], object]] = {
            "covey": by_sums(data, slopes),
            "statsmodels": by_statsmodels(data, slopes),
        }
        values = {who: fit() for who, fit in contenders.items()}
        report(f"Maximum likelihood, {title}", interleaved(contenders, repeats=5), "statsmodels")
        print(
            "  log-likelihood: " + ", ".join(f"{who} {value:.3f}" for who, value in values.items())
        )


if __name__ == "__main__":
    main()
