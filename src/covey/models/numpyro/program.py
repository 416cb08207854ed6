"""A NumPyro model as pure functions of unconstrained values by site."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key, Shaped
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace

from covey.core.shard import Axis, Rows, Spec
from covey.models.predictive import (
    Binomial,
    Categorical,
    NegativeBinomial,
    Normal,
    Poisson,
    Predictive,
)

Site: TypeAlias = Mapping[str, Any]  # what NumPyro records of one statement
Trace: TypeAlias = Mapping[str, Site]
Values: TypeAlias = dict[str, Array]
Strategy: TypeAlias = Callable[..., Any]  # (site) -> value, of numpyro.infer


class Program(NamedTuple):
    """A NumPyro model as Covey calls it; `learned` finds the fields after the first four.

    Attributes:
        name: Name in reports and messages.
        call: (rows, clients) runs the model.
        spec: Shapes of a row, and an example row where it has one.
        strategy: Start of the latent sites.
        shared: Latent sites outside of the client plate.
        effects: Latent sites inside the plate in the order of their names, with the shapes of their
            unconstrained values.
        common: Sites to describe that all clients share.
        own: Sites to describe that are a client's, with the axis of the client plate.
        columns: Sites to describe that have one value per column of x.
        observed: The site of the outcomes.
        row_axis: The axis of its log-density that counts rows.
        sites: All sample sites in the order in which the model comes to them.
    """

    name: str
    call: Callable[[Rows, int], object]
    spec: Spec
    strategy: Strategy
    shared: tuple[str, ...] = ()
    effects: Mapping[str, tuple[int, ...]] = {}
    common: Mapping[str, None] = {}
    own: Mapping[str, int] = {}
    columns: tuple[str, ...] = ()
    observed: str = ""
    row_axis: int = -1
    sites: tuple[str, ...] = ()

    def example(self) -> Rows:
        """One row of the data's kind: that of the spec, or else ones, which suit a scale too."""
        given = getattr(self.spec, "example", None)
        if given is not None:
            return given
        return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), self.spec.rows)

    def rows(self, count: int) -> Rows:
        """The example row, several times."""
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (count, *jnp.shape(leaf))),
            self.example(),
        )

    def run(
        self,
        rows: Rows,
        given: Values,
        *,
        clients: int = 1,
        key: Key[Array, ""] | None = None,
        strategy: Strategy | None = None,
    ) -> Trace:
        """The model's statements where sites have the values `given`; other latent sites by the
        strategy, or drawn.
        """

        def value(site: Site) -> Array | None:
            if site["type"] != "sample" or site["is_observed"]:
                return None
            if site["name"] in given:
                return transform_of(site)(given[site["name"]])
            if strategy is None or site["fn"].support.is_discrete:
                return None
            shape = (*site["kwargs"].get("sample_shape", ()), *site["fn"].shape())
            return jnp.broadcast_to(jnp.asarray(strategy(site), float), shape)

        # Where nothing is drawn there are no keys, which cannot be split in double precision within
        # a program of single precision.
        latent = (*self.shared, *self.effects)
        fixed = bool(self.sites) and (strategy is prior_mean or set(given).issuperset(latent))
        called = self.call if fixed else seed(self.call, jax.random.key(0) if key is None else key)
        traced = trace(substitute(called, substitute_fn=value))
        try:
            return traced.get_trace(rows, clients)
        except Exception as error:
            shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(rows))
            said = (
                f"{self.name}: the model failed {self._where(traced.trace)}, tried on x, y of "
                f"shapes {shapes} of {clients} client(s)"
            )
            if isinstance(error, ValueError):  # NumPyro's word on a parameter does not name a site
                raise ValueError(f"{said}: {error}") from error
            error.add_note(said)
            raise

    def _where(self, reached: Trace) -> str:
        """The site at which a run stopped, as far as it is known."""
        for site in self.sites:
            if site not in reached:
                return f"at site {site!r}"
        passed = [name for name, site in reached.items() if site["type"] == "sample"]
        return f"after site {passed[-1]!r}" if passed else "before its first site"

    def unconstrained(
        self,
        given: Values,
        sites: Iterable[str],
        *,
        key: Key[Array, ""] | None = None,
        strategy: Strategy | None = None,
    ) -> Values:
        """Unconstrained values of sites that are not given, by the strategy, or drawn."""
        found = self.run(self.rows(1), given, key=key, strategy=strategy)
        return {site: unconstrained(found[site]) for site in sites}

    def init(self, key: Key[Array, ""], spec: Spec) -> Values:
        """Start of the shared sites; an error for rows that the model was not made for."""
        made, given = (jax.tree.map(lambda leaf: leaf.shape, one.rows) for one in (self.spec, spec))
        if (made, self.spec.classes) != (given, spec.classes):
            raise ValueError(
                f"{self.name}: made for rows of shapes {tuple(made)} and "
                f"classes={self.spec.classes}, but these data have {tuple(given)} and "
                f"classes={spec.classes}; make it with the spec of the data that are learned from"
            )
        return self.unconstrained({}, self.shared, key=key, strategy=self.strategy)

    def log_density(self, given: Values, sites: Iterable[str]) -> Float[Array, ""]:
        """Log-density of the unconstrained values of these sites, given the others; it does not
        depend on those that are not given.
        """
        found = self.run(self.rows(1), given, strategy=prior_mean)
        return sum((log_density(found[site], given[site]) for site in sites), jnp.zeros(()))

    def log_likelihood(self, given: Values, rows: Rows) -> Float[Array, " rows"]:
        """The log-density of the outcomes by row."""
        terms = jnp.moveaxis(log_prob(self.run(rows, given)[self.observed]), self.row_axis, 0)
        return terms.reshape(terms.shape[0], -1).sum(axis=1)

    def predictive(self, given: Values, x: Shaped[Array, " rows *features"]) -> Predictive:
        """The predictive distribution of the outcomes. The model is called with the outcome of the
        example row, on which its distributions cannot depend.
        """
        site = self.run(Rows(x, self.rows(x.shape[0]).y), given)[self.observed]
        found = predictive_of(site, x.shape[0])
        if found is None:
            raise ValueError(
                f"{self.name}: predictions are of one Bernoulli, Categorical, Normal, Poisson, "
                "negative binomial or binomial outcome per row, but the observed site "
                f"{self.observed!r} is {type(unwrapped(site['fn'])).__name__} with log-densities "
                f"of shape {log_prob(site).shape}; a method can learn from it, not predict it"
            )
        return found

    def described(self, given: Values, sites: Mapping[str, int | None]) -> Values:
        """Values of sites in the terms of the model, a client's without the axis of the plate."""
        found = self.run(self.rows(1), given)
        values = {site: jnp.asarray(found[site]["value"]) for site in sites}
        return {
            site: values[site] if axis is None else jnp.squeeze(values[site], axis)
            for site, axis in sites.items()
        }

    def axes(self, spec: Spec) -> dict[str, Axis]:
        """Names of the columns of x, for the sites that have one value per column."""
        if spec.features is None:
            return {}
        return {site: Axis("column", spec.features) for site in self.columns}


def predictive_of(site: Site, rows: int) -> Predictive | None:
    """The predictive distribution of an observed site; None for other distributions."""
    base, terms = unwrapped(site["fn"]), log_prob(site)
    kind = type(base)
    if terms.size != rows:
        return None

    def by_row(values, *event: int) -> Float[Array, " rows *event"]:
        return (
            jnp.broadcast_to(values, (*terms.shape, *event))
            .reshape(rows, *event)
            .astype(terms.dtype)
        )

    if issubclass(kind, (dist.BernoulliProbs, dist.BernoulliLogits)):
        return Categorical.of_logit(by_row(base.logits))
    if issubclass(kind, (dist.CategoricalProbs, dist.CategoricalLogits)):
        return Categorical.of_logits(by_row(base.logits, base.logits.shape[-1]))
    if issubclass(kind, dist.Normal):
        return Normal(by_row(base.loc), by_row(base.scale))
    if issubclass(kind, dist.Poisson):
        rate = by_row(base.rate)
        return Poisson(
            jnp.log(jnp.maximum(rate, jnp.finfo(rate).tiny))
        )  # a rate of zero has no logarithm
    if issubclass(kind, dist.GammaPoisson):  # negative binomials too
        return NegativeBinomial(
            by_row(jnp.log(base.concentration) - jnp.log(base.rate)), by_row(base.concentration)
        )
    if issubclass(kind, (dist.BinomialProbs, dist.BinomialLogits)):
        return Binomial(by_row(base.logits), by_row(base.total_count))
    return None


def unwrapped(distribution: Any) -> Any:
    """A distribution without what plates and masks wrap around it."""
    while isinstance(distribution, (dist.ExpandedDistribution, dist.MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution


def log_prob(site: Site) -> Array:
    """The log-density of a site's value, by element of its batch."""
    terms = site["fn"].log_prob(site["value"])
    return terms if site["scale"] is None else site["scale"] * terms


def log_density(site: Site, u: Array) -> Float[Array, ""]:
    """The log-density of a site's unconstrained value: log p(T(u)) + log |dT/du|."""
    return jnp.sum(log_prob(site)) + jnp.sum(
        transform_of(site).log_abs_det_jacobian(u, site["value"])
    )


def prior_mean(site: Site) -> Array:
    """A strategy that draws nothing: the mean of a site's prior where it is finite, else the value
    whose unconstrained value is zero.
    """
    transform = transform_of(site)
    middle = transform(jnp.zeros(transform.inverse_shape(site["fn"].shape())))
    try:
        mean = site["fn"].mean
    except (NotImplementedError, ValueError):  # as NumPyro says that a distribution has none
        return middle
    return jnp.where(jnp.isfinite(mean), mean, middle)


def transform_of(site: Site) -> Any:
    """The map T from unconstrained values to the support."""
    return biject_to(site["fn"].support)


def unconstrained(site: Site) -> Array:
    """The unconstrained value of a site, T^-1(value)."""
    return transform_of(site).inv(site["value"])
