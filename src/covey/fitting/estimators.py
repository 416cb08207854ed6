"""Regressions with random effects in the manner of scikit-learn: options first, then `fit` on
federated data. Thin over `covey.fit`.

`clone`, `get_params`, `is_classifier` and `check_is_fitted` work with them; tools that divide rows,
such as `cross_val_score`, do not, as federated data are no array.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd

from covey.data.federated import FederatedData
from covey.fitting.fit import fit
from covey.fitting.methods import Estimate
from covey.fitting.result import Fit

OUTCOME, SITES = "outcome", "client"
Self = TypeVar("Self", bound="_Estimator")


@dataclass
class _Estimator:
    """The base of both estimators; see `FederatedRegressor`."""

    intercepts: bool = True
    slopes: tuple[str, ...] = ()
    estimate: Estimate = "posterior"
    priors: Mapping[str, str] | None = None
    seed: int = 0
    family: ClassVar[str] = "gaussian"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options by name, for scikit-learn's `clone` and searches.

        Args:
            deep: Not used: no option is an estimator.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self: Self, **params: Any) -> Self:
        """Change options.

        Args:
            **params: Options by name.
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(
                    f"there is no option {name!r}; options are {', '.join(self.get_params())}"
                )
            setattr(self, name, value)
        return self

    def fit(self: Self, data: FederatedData) -> Self:
        """Fit to the training rows of all clients.

        Args:
            data: The clients' rows, with names of columns, on their original scale.

        Returns:
            The estimator, with `fit_`, the `covey.Fit`.
        """
        if data.features is None:
            raise ValueError("the columns of these data have no names; make them with features=")
        missing = [name for name in self.slopes if name not in data.features]
        if missing:
            raise ValueError(f"slopes has {missing[0]!r}; columns are {', '.join(data.features)}")
        own = " + ".join([str(int(self.intercepts)), *(f"`{name}`" for name in self.slopes)])
        varies = self.intercepts or self.slopes
        bar = [f"({own} | {SITES})"] if varies else []
        terms = " + ".join([*(f"`{name}`" for name in data.features), *bar]) or "1"
        outcome = OUTCOME
        while outcome in data.features:
            outcome += "_"
        self.fit_: Fit = fit(
            f"{outcome} ~ {terms}",
            data,
            family=self.family,
            estimate=self.estimate,
            priors=self.priors,
            client=SITES,
            seed=self.seed,
            progress=False,
        )
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """For scikit-learn's `check_is_fitted`."""
        return hasattr(self, "fit_")

    def __sklearn_tags__(self) -> Any:
        """The tags of the estimator for scikit-learn, e.g. for `is_classifier`."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        classifies = self.family == "bernoulli"
        return Tags(
            estimator_type="classifier" if classifies else "regressor",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(multi_class=False) if classifies else None,
            regressor_tags=None if classifies else RegressorTags(),
            input_tags=InputTags(two_d_array=False),
        )

    def _predicted(self, x: pd.DataFrame | np.ndarray, client: str | None) -> np.ndarray:
        if not hasattr(self, "fit_"):
            raise ValueError(f"{type(self).__name__} is not fitted yet; call fit(data) first")
        rows = x if isinstance(x, pd.DataFrame) else pd.DataFrame(x, columns=list(self._columns))
        return self.fit_.predict(rows, client)["mean"].to_numpy()

    @property
    def _columns(self) -> tuple[str, ...]:
        return self.fit_.design.columns


@dataclass
class FederatedRegressor(_Estimator):
    """Linear regression with random effects of clients, in the manner of scikit-learn.

    `fit` takes federated data; `predict` new rows, of a client or of a new one.

    Args:
        intercepts: Whether each client has a random intercept. Default: yes.
        slopes: Columns with a random slope for each client. Default: none.
        estimate: "posterior" (default), "ml" or "reml".
        priors: By term, see `covey.fit`. Default: weakly informative ones.
        seed: Seed of everything random.

    Attributes:
        fit_: The `covey.Fit`: summaries, effects, intervals.

    Example:
        >>> import covey, numpy as np
        >>> random, rows = np.random.default_rng(0), {}
        >>> for site in "abcdef":
        ...     x, own = random.normal(size=(20, 1)), random.normal()
        ...     rows[site] = x, 2 * x[:, 0] + own + 0.1 * random.normal(size=20)
        >>> data = covey.FederatedData.from_clients(rows, features=["dose"])
        >>> model = covey.FederatedRegressor(estimate="ml").fit(data)
        >>> own = model.predict(np.array([[0.0], [1.0]]), client="a")
        >>> bool(abs(own[1] - own[0] - 2) < 0.1)
        True
    """

    family: ClassVar[str] = "gaussian"

    def predict(self, x: pd.DataFrame | np.ndarray, client: str | None = None) -> np.ndarray:
        """The mean of the outcome, by row.

        Args:
            x: New rows: a data frame, or an array with the columns of the fit.
            client: The client; None is a new one.
        """
        return self._predicted(x, client)

    def score(
        self, x: pd.DataFrame | np.ndarray, y: np.ndarray, client: str | None = None
    ) -> float:
        """The share of the outcomes' variance that is predicted (R squared).

        Args:
            x: Rows.
            y: Their outcomes.
            client: The client; None is a new one.
        """
        y = np.asarray(y, float)
        return float(1 - np.sum((y - self.predict(x, client)) ** 2) / np.sum((y - y.mean()) ** 2))


@dataclass
class FederatedClassifier(_Estimator):
    """Logistic regression with random effects of clients, in the manner of scikit-learn.

    `fit` takes federated data with two classes; `predict_proba` new rows, of a client or of a new
    one.

    Args:
        intercepts: Whether each client has a random intercept. Default: yes.
        slopes: Columns with a random slope for each client. Default: none.
        estimate: "posterior" (default) or "ml".
        priors: By term, see `covey.fit`. Default: weakly informative ones.
        seed: Seed of everything random.

    Attributes:
        fit_: The `covey.Fit`: summaries, effects, intervals.

    Example:
        >>> import covey
        >>> covey.FederatedClassifier(slopes=("age",)).get_params()["slopes"]
        ('age',)
    """

    family: ClassVar[str] = "bernoulli"

    def predict_proba(self, x: pd.DataFrame | np.ndarray, client: str | None = None) -> np.ndarray:
        """Probabilities of the classes 0 and 1, by row.

        Args:
            x: New rows: a data frame, or an array with the columns of the fit.
            client: The client; None is a new one.
        """
        event = self._predicted(x, client)
        return np.column_stack([1 - event, event])

    def predict(self, x: pd.DataFrame | np.ndarray, client: str | None = None) -> np.ndarray:
        """The likelier class, by row.

        Args:
            x: New rows: a data frame, or an array with the columns of the fit.
            client: The client; None is a new one.
        """
        return (self._predicted(x, client) > 0.5).astype(int)

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of `predict_proba`."""
        return np.array([0, 1])

    def score(
        self, x: pd.DataFrame | np.ndarray, y: np.ndarray, client: str | None = None
    ) -> float:
        """The share of rows whose class is predicted.

        Args:
            x: Rows.
            y: Their classes.
            client: The client; None is a new one.
        """
        return float(np.mean(self.predict(x, client) == np.asarray(y)))
