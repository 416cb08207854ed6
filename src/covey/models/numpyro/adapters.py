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
    """A NumPyro model with a plate over clients: sites inside it are the effects, the other latent
    sites are shared.

    Args:
        model: a function (x, y, client, clients) with NumPyro statements, as the docstring of
            `covey.models.numpyro` shows.
        spec: what the rows look like: `data.spec`. The model is tried on such rows at once, so that
            mistakes are named here.
        plate: the name of the plate over clients.
        init_strategy: where shared parameters and chains of effects start: at the mean of their
            prior, or by a strategy of `numpyro.infer`, such as init_to_sample for a network, whose
            units must not start alike.
        name: what reports call it; by default the function's name.
    """
    name = _checked_name(model, name, "client_plate", ("x", "y", "client", "clients"))

    def call(rows: Rows, clients: int) -> object:
        number = jax.tree.leaves(rows.x)[0].shape[0]
        # Clients take turns, which is zero for all rows where there is one client.
        return model(rows.x, rows.y, jnp.arange(number, dtype=jnp.int32) % clients, clients)

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

    def draws(key: Key[Array, ""], phi: Values, number: int) -> Float[Array, "number effects"]:
        keys = jax.random.split(key, number)
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
    )


def from_numpyro(
    model: Callable[..., object],
    spec: Spec,
    *,
    init_strategy: Strategy = prior_mean,
    name: str | None = None,
) -> Model:
    """A NumPyro model (x, y) whose latent sites are all shared, with its prior; parameters are
    unconstrained, by site.

    The options are those of `client_plate`. Methods that optimise the likelihood, as FedAvg does,
    use no prior.
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
    )


def _checked_name(
    model: Callable[..., object], name: str | None, adapter: str, arguments: tuple[str, ...]
) -> str:
    """What to call a model that takes these arguments."""
    called: str = name or getattr(model, "__name__", type(model).__name__)
    signature = inspect.signature(model)
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{adapter}: a model takes ({', '.join(arguments)}), but {called} takes {signature}"
        ) from None
    return called
