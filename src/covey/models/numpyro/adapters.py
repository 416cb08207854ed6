"""From a NumPyro model to a `MixedModel` or a `Model`."""

import inspect
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from covey.core.shard import Rows, Spec
from covey.models.effects import Law
from covey.models.mixed import MixedModel
from covey.models.model import Model
from covey.models.numpyro.learn import learned
from covey.models.numpyro.program import Program, Strategy, Values, prior_mean


def client_plate(
    model: Callable[..., object],
    spec: Spec,
    *,
    plate: str = "client",
    init_strategy: Strategy = prior_mean,
    name: str | None = None,
) -> MixedModel:
    """A NumPyro model with a plate over clients as a mixed model.

    Sites inside the plate are a client's random effects z; the other latent sites are the shared
    parameters phi, with their priors. A federated client is the only one in its plate: the model is
    called with `client` zero for all of its rows and `clients` one.

    Args:
        model: A function (x, y, client, clients) with NumPyro statements. `client` is the index of
            each row's client in the plate.
        spec: Shapes of the rows: `data.spec`. The model is tried on a row of this kind at once, so
            that mistakes are found here.
        plate: Name of the plate over clients. Default: "client".
        init_strategy: Start of the shared parameters and of the chains of effects. Default: the
            mean of their prior; a strategy of `numpyro.infer` such as init_to_sample for a network,
            whose units must not start alike.
        name: Name in reports. Default: the name of the function.

    Returns:
        A mixed model with its own law of the effects and prior, for `fedpop`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from covey.data.federated import FederatedData
        >>> def schools(x, y, client, clients):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 5))
        ...     spread = numpyro.sample("spread", dist.HalfCauchy(5))
        ...     with numpyro.plate("client", clients):
        ...         effect = numpyro.sample("effect", dist.Normal(mean, spread))
        ...     numpyro.sample("y", dist.Normal(effect[client], x[:, 0]), obs=y)
        >>> data = FederatedData.from_clients(
        ...     {"A": ([[15.0]], [28.0]), "B": ([[10.0]], [8.0])}, features=["standard_error"]
        ... )
        >>> model = client_plate(schools, data.spec)
        >>> sorted(model.init(jax.random.key(0), data.spec))
        ['mean', 'spread']
    """
    name = _checked_name(model, name, "client_plate", ("x", "y", "client", "clients"))

    def call(rows: Rows, clients: int) -> object:
        count = jax.tree.leaves(rows.x)[0].shape[0]
        # Clients take turns, which is zero for all rows where there is one client.
        return model(rows.x, rows.y, jnp.arange(count, dtype=jnp.int32) % clients, clients)

    program = learned(Program(name, call, spec, init_strategy), plate)
    ends = np.cumsum([math.prod(shape) for shape in program.effects.values()])

    def split(z: Float[Array, " effects"]) -> Values:
        pieces = jnp.split(z, ends[:-1]) if program.effects else []
        return {
            site: u.reshape(shape)
            for (site, shape), u in zip(program.effects.items(), pieces, strict=True)
        }

    def joined(values: Values) -> Float[Array, " effects"]:
        return jnp.concatenate([jnp.zeros(0), *(values[site].ravel() for site in program.effects)])

    def start(phi: Values, key: Key[Array, ""] | None = None) -> Float[Array, " effects"]:
        return joined(program.unconstrained(phi, program.effects, key=key, strategy=init_strategy))

    def draws(key: Key[Array, ""], phi: Values, count: int) -> Float[Array, "count effects"]:
        keys = jax.random.split(key, count)
        return jax.vmap(lambda key: joined(program.unconstrained(phi, program.effects, key=key)))(
            keys
        )

    law = Law(
        init=lambda key, z, spec: program.init(key, spec),
        log_density=lambda phi, z: program.log_density(phi | split(z), program.effects),
        start=start,
        draws=draws,
    )
    return MixedModel(
        name=name,
        init=program.init,
        init_effects=lambda key, spec: start({}, key),
        log_likelihood=lambda phi, z, rows: program.log_likelihood(phi | split(z), rows),
        predictive=lambda phi, z, x: program.predictive(phi | split(z), x),
        log_prior=lambda phi: program.log_density(phi, program.shared),
        law=law,
        describe=lambda phi, z: program.described(phi | split(z), program.own),
        coefficients=lambda phi, z: program.described(phi, program.common),
        axes=program.axes,
    )


def from_numpyro(
    model: Callable[..., object],
    spec: Spec,
    *,
    init_strategy: Strategy = prior_mean,
    name: str | None = None,
) -> Model:
    """A NumPyro model whose latent sites are all shared, with its prior.

    Parameters are a dictionary of unconstrained values by site. Methods that optimise the
    likelihood, such as FedAvg, do not use the prior.

    Args:
        model: A function (x, y) with NumPyro statements.
        spec: Shapes of the rows: `data.spec`. The model is tried on a row of this kind at once.
        init_strategy: Start of the parameters. Default: the mean of their prior.
        name: Name in reports. Default: the name of the function.

    Returns:
        A model for any method that takes a `Model`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from covey.data.federated import FederatedData
        >>> def counts(x, y):
        ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        ...     numpyro.sample("y", dist.Poisson(rate * x[:, 0]), obs=y)
        >>> data = FederatedData.from_clients({"A": ([[2.0], [1.0]], [3.0, 0.0])})
        >>> model = from_numpyro(counts, data.spec)
        >>> params = model.init(jax.random.key(0), data.spec)
        >>> round(float(model.describe(params)["rate"]), 3)  # the prior mean
        2.0
    """
    name = _checked_name(model, name, "from_numpyro", ("x", "y"))
    program = learned(
        Program(name, lambda rows, clients: model(rows.x, rows.y), spec, init_strategy), None
    )
    return Model(
        name=name,
        init=program.init,
        log_likelihood=program.log_likelihood,
        predictive=program.predictive,
        log_prior=lambda params: program.log_density(params, program.shared),
        describe=lambda params: program.described(params, program.common),
        axes=program.axes,
    )


def _checked_name(
    model: Callable[..., object], name: str | None, adapter: str, arguments: tuple[str, ...]
) -> str:
    """The name of a model; an error where it does not take these arguments."""
    called: str = name or getattr(model, "__name__", type(model).__name__)
    signature = inspect.signature(model)
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{adapter}: a model takes ({', '.join(arguments)}), but {called} takes {signature}"
        ) from None
    return called
