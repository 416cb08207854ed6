"""Every method of the package, small enough to be walked through every engine."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from covey import models
from covey.algorithms.apfl import apfl
from covey.algorithms.clustered import clustered
from covey.algorithms.dg_lmc import dg_lmc
from covey.algorithms.ditto import ditto
from covey.algorithms.em import em
from covey.algorithms.fald import fald
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedavg_plus import fedavg_plus
from covey.algorithms.fedbe import fedbe
from covey.algorithms.fedem import fedem
from covey.algorithms.fedmissem import fedmissem
from covey.algorithms.fedpa import fedpa
from covey.algorithms.fedper import fedper
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedprox import fedprox
from covey.algorithms.fedrep import fedrep
from covey.algorithms.fsgld import fsgld
from covey.algorithms.l2gd import l2gd
from covey.algorithms.lg_fedavg import lg_fedavg
from covey.algorithms.local import local
from covey.algorithms.marginal import marginal
from covey.algorithms.mb_sgd import mb_sgd
from covey.algorithms.mime import mime
from covey.algorithms.mimelite import mimelite
from covey.algorithms.mixture import mixture
from covey.algorithms.mocha import mocha
from covey.algorithms.per_fedavg import per_fedavg
from covey.algorithms.pfedme import pfedme
from covey.algorithms.qlsd import qlsd
from covey.algorithms.qlsd_plus import qlsd_plus
from covey.algorithms.scaffold import scaffold
from covey.algorithms.vr_fedem import vr_fedem
from covey.core import cohort
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, Posterior, evaluate, no_state
from covey.core.cohort import Scheme
from covey.core.metrics import Mean
from covey.core.shard import Rows, Shard, all_rows
from covey.kernels import ornstein_uhlenbeck, psgld, sgld
from covey.models import Normal


class Walk(NamedTuple):
    theta: jax.Array
    memory: jax.Array  # the mean of the clients' memories, weighted as they take part


class Heard(NamedTuple):
    drift: jax.Array


class Moved(NamedTuple):
    step: jax.Array


def remembering() -> Algorithm:
    """Not a method: it uses every part of the seam at once, so that engines have nothing to hide.

    Clients keep a memory that starts from the broadcast of their first round and moves by what was
    SENT; clients and server draw random numbers; the server uses the weighted and the plain sum,
    the weight and the count.
    """

    def client(key, down, memory, data):
        rows = all_rows(data)
        mean = jnp.sum(jnp.where(rows.mask[:, None], rows.rows.x, 0), 0) / jnp.maximum(
            data.count, 1
        )
        noisy = mean + 0.1 * jax.random.normal(key, mean.shape) - 0.1 * down.theta
        weight = 1.0 + data.count.astype(float)
        return Local(noisy - memory, memory, Heard(jnp.linalg.norm(noisy)), weight)

    def server(key, state, aggregate):
        fresh = aggregate.weighted / aggregate.weight + 0.1 * aggregate.plain / aggregate.count
        noise = 0.01 * jax.random.normal(key, state.theta.shape)
        new = Walk(state.theta + 0.5 * fresh + noise, state.memory + 0.1 * aggregate.plain)
        return new, Moved(jnp.linalg.norm(fresh))

    return Algorithm(
        name="remembering",
        init=lambda key, spec: Walk(
            jax.random.normal(key, spec.rows.x.shape), jnp.zeros(spec.rows.x.shape)
        ),
        init_client=lambda key, down, data: (
            0.2 * down.theta + 0.01 * jax.random.normal(key, down.theta.shape)
        ),
        broadcast=lambda state: state,
        client=client,
        commit=lambda memory, sent: memory + 0.5 * sent,
        server=server,
        evaluate=lambda key, down, memory, data: {
            "distance": Mean(jnp.sum((memory - down.theta) ** 2), jnp.ones(()))
        },
        predict=lambda key, down, memory, x: Normal(x @ memory, jnp.ones(x.shape[0])),
        adapt=lambda key, down, data: down.theta + jax.random.normal(key, down.theta.shape),
        posterior=Posterior(
            client=lambda key, down, memory, data, count: (
                memory + jax.random.normal(key, (count, *memory.shape))
            )
        ),
    )


def forgetting() -> Algorithm:
    """Not a method: clients remember nothing, predict with what they adapt at evaluation, and send
    nested uploads of which a part is exact.
    """

    def client(key, down, state, data):
        rows = all_rows(data)
        total = jnp.sum(jnp.where(rows.mask, rows.rows.y, 0.0))
        move = 0.1 * jax.random.normal(key, down.shape) - down
        up = {"move": move, "count": data.count.astype(float)}
        return Local(up, Empty(), Heard(total), data.count.astype(float))

    def server(key, state, aggregate):
        mean = aggregate.weighted["move"] / jnp.maximum(aggregate.weight, 1.0)
        return state + 0.5 * mean + 0.01 * aggregate.plain["count"], Empty()

    return Algorithm(
        name="forgetting",
        init=lambda key, spec: jax.random.normal(key, spec.rows.x.shape),
        broadcast=lambda state: state,
        server=server,
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, down, own, x: Normal(x @ own, jnp.ones(x.shape[0])),
        adapt=lambda key, down, data: down + 0.01 * data.count,
        exact=("count",),
        hooks=Hooks(adapt_before_evaluation=True),
    )


def on_cells(method: Algorithm) -> Algorithm:
    """A method for observed cells of a matrix of 6 x 4, on rows of numbers: the first two features
    of a row name its cell.
    """

    def cells(x):
        return jnp.abs(10 * x[..., :2]).astype(jnp.int32) % jnp.array([6, 4])

    def seen(data: Shard) -> Shard:
        return replace(data, rows=Rows(cells(data.rows.x), data.rows.y))

    def init(key, spec):
        return method.init(
            key, spec._replace(rows=Rows(jax.ShapeDtypeStruct((2,), jnp.int32), spec.rows.y))
        )

    return method._replace(
        init=init,
        init_client=lambda key, down, data: method.init_client(key, down, seen(data)),
        client=lambda key, down, state, data: method.client(key, down, state, seen(data)),
        evaluate=lambda key, down, state, data: evaluate(method, key, down, state, seen(data)),
        predict=lambda key, down, state, x: method.predict(key, down, state, cells(x)),
        adapt=lambda key, down, data: method.adapt(key, down, seen(data)),
    )


def cohort_for(algorithm: Algorithm, scheme: Scheme | None = None) -> Scheme | None:
    """The scheme, or everyone for a method that needs all clients, or one for one that takes one
    only.
    """
    own = {"marginal": cohort.full(), "fsgld": cohort.uniform(1)}
    return own.get(algorithm.name, scheme)


SGD = optax.sgd(0.05, momentum=0.9)
OWN_BIAS = models.split_network(models.linear(), personal="bias")

METHODS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: fedavg(models.linear(), client_optimizer=SGD, batch_size=8),
    "apfl": lambda: apfl(
        models.linear(), client_optimizer=SGD, batch_size=8, alpha_step=0.05, adapt_epochs=2
    ),
    "mb_sgd": lambda: mb_sgd(models.linear(), batch_size=8),
    "fedprox": lambda: fedprox(models.linear(), proximal=0.1, client_optimizer=SGD, batch_size=8),
    "fedpa": lambda: fedpa(
        models.linear(), samples=3, burn_in_rounds=1, client_optimizer=SGD, batch_size=8, rank=2
    ),
    "fedpop": lambda: fedpop(
        models.mixed_linear(slopes="all"), step_size=1e-3, draws=4, adapt_burn_in=5
    ),
    "fedrep": lambda: fedrep(
        OWN_BIAS, head_optimizer=SGD, batch_size=8, head_epochs=2, adapt_epochs=2
    ),
    "fedper": lambda: fedper(OWN_BIAS, client_optimizer=SGD, batch_size=8, adapt_epochs=2),
    "clustered": lambda: clustered(
        models.linear(),
        clusters=3,
        tolerance=0.9,
        coherence=0.0,
        patience=2,
        client_optimizer=SGD,
        batch_size=8,
    ),
    "local": lambda: local(models.linear(), client_optimizer=SGD, batch_size=8, adapt_epochs=2),
    "fedavg_plus": lambda: fedavg_plus(models.linear(), client_optimizer=SGD, batch_size=8),
    "fald": lambda: fald(
        models.linear(),
        step_size=1e-3,
        local_steps=3,
        batch_size=8,
        correlation=0.5,
        prior=2.0,
        keep=3,
    ),
    "marginal": lambda: marginal(models.mixed_linear(slopes=(1,)), predictive_draws=5),
    "em": lambda: em(models.regression_mixture(components=2)),
    "mixture": lambda: mixture(models.linear(), components=2, client_optimizer=SGD, batch_size=8),
    "pfedme": lambda: pfedme(
        models.linear(), proximal=2.0, inner_steps=3, local_rounds=4, batch_size=8, adapt_epochs=2
    ),
    "fedem": lambda: fedem(models.regression_mixture(components=2), step_size=0.2, batch_size=8),
    "fedmissem": lambda: on_cells(
        fedmissem(models.matrix_completion(rows=6, columns=4), step_size=0.5, batch_size=8)
    ),
    "vr_fedem": lambda: vr_fedem(models.regression_mixture(components=2), inner=3, batch_size=8),
    "scaffold": lambda: scaffold(models.linear(), step_size=0.05, batch_size=8),
    "mime": lambda: mime(models.linear(), step_size=0.05, batch_size=8),
    "mimelite": lambda: mimelite(models.linear(), step_size=0.05, batch_size=8),
    "ditto": lambda: ditto(models.linear(), client_optimizer=SGD, batch_size=8, adapt_epochs=2),
    "l2gd": lambda: l2gd(
        models.linear(), proximal=0.5, chance=0.4, step_size=0.05, batch_size=8, adapt_epochs=2
    ),
    "per_fedavg": lambda: per_fedavg(models.linear(), client_optimizer=SGD, batch_size=8),
    "lg_fedavg": lambda: lg_fedavg(
        models.linear(), shared="weight", client_optimizer=SGD, batch_size=8, adapt_epochs=2
    ),
    "mocha": lambda: mocha(models.linear(), penalty=0.5, epochs=2, rows=96, adapt_epochs=2),
    "qlsd": lambda: qlsd(models.linear(), step_size=1e-3, batch_size=8, prior=2.0, keep=3),
    "qlsd_plus": lambda: qlsd_plus(
        models.linear(), step_size=1e-3, batch_size=8, inner=2, prior=2.0, keep=3
    ),
    "fsgld": lambda: fsgld(
        models.linear(), step_size=1e-3, local_steps=3, batch_size=8, prior=2.0, keep=3
    ),
    "fedbe": lambda: fedbe(
        models.linear(),
        server_rows=np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32),
        members=3,
        distill_steps=10,
        client_optimizer=SGD,
        batch_size=8,
    ),
    "dg_lmc": lambda: dg_lmc(
        models.linear(), tolerance=0.02, local_steps=3, batch_size=8, prior=2.0, keep=3
    ),
}

# Two methods that are none: between them they use every part of the seam. Engines are walked with
# these; each real method keeps the contract that engines rely on (`test_contract.py`).
MADE: dict[str, Callable[[], Algorithm]] = {"remembering": remembering, "forgetting": forgetting}

# The same methods by other options: what a configuration can reach is walked through too.
VARIANTS: dict[str, Callable[[], Algorithm]] = {
    "fedavg-steps": lambda: fedavg(models.linear(), steps=5, batch_size=16),
    "fedavg-full-batch": lambda: fedavg(
        models.linear(), batch_size=None, epochs=3, weighting="equal"
    ),
    "fedadam": lambda: fedavg(
        models.linear(), server_optimizer=optax.adam(0.05), batch_size=8, epochs=2
    ),
    "fedpa-kernel": lambda: fedpa(
        models.linear(),
        samples=4,
        rho="oas",
        burn_in_steps=2,
        steps_per_sample=2,
        kernel=sgld(batch_size=8),
        step_size=1e-4,
    ),
    "fedpop-sgld": lambda: fedpop(
        models.mixed_linear(slopes=(2, 0)),
        step_size=1e-3,
        draws=3,
        burn_in=2,
        kernel=sgld(batch_size=8),
        effects=models.gaussian(covariance="isotropic"),
        scaling="ratio",
    ),
    "fedpop-map": lambda: fedpop(
        models.linear_map(effects=2),
        step_size=0.5,
        draws=2,
        kernel=ornstein_uhlenbeck(),
        effects=models.mixture(components=2),
        phi_prior=1.0,
        beta_prior=2.0,
        anneal=(10.0, 3),
    ),
    "fedpop-energy": lambda: fedpop(
        models.linear_map(effects=2),
        step_size=1e-3,
        draws=2,
        kernel=psgld(batch_size=8),
        effects=models.energy(units=4, particles=8, steps=3, fewest_clients=1),
    ),
    "fedrep-network": lambda: fedrep(
        models.mixed_mlp(hidden=(4,), outcome="number"), batch_size=8, head_epochs=2
    ),
    "fedrep-steps": lambda: fedrep(
        models.linear_map(effects=2), head_steps=5, body_steps=2, batch_size=16, weighting="rows"
    ),
    "fedrep-nothing-personal": lambda: fedrep(
        models.split_network(models.linear(), personal=()), batch_size=None, head_epochs=1
    ),
    "fedper-nothing-shared": lambda: fedper(
        models.split_network(models.linear(), personal="all"), weighting="equal"
    ),
    "fald-one-chain": lambda: fald(
        models.linear(scale=None),
        step_size=1e-3,
        chains=1,
        decay=0.1,
        jitter=0.1,
        burn_in=1,
        thinning=2,
        temperature=0.5,
    ),
    "fedem-stream": lambda: fedem(
        models.gaussian_mixture(components=2, covariance="full"),
        decay=0.6,
        batch_size=5,
        oracle="stream",
        weighting="equal",
    ),
    "mixture-network": lambda: mixture(
        models.mlp(hidden=(4,), outcome="number"),
        components=3,
        steps=5,
        batch_size=None,
        server_optimizer=optax.adam(0.05),
    ),
    "fedmissem-observed": lambda: on_cells(
        fedmissem(
            models.matrix_completion(
                rows=6, columns=4, curvature="observed", effect_ridge=0.5, offset=1.0
            ),
            memory_rate=0.0,
        )
    ),
    "marginal-reml": lambda: marginal(
        models.mixed_linear(slopes=(1,)), estimate="reml", covariance="diagonal"
    ),
    "marginal-pooled": lambda: marginal(models.linear(), prior=1.0, predictive_draws=5),
    "marginal-posterior": lambda: marginal(
        models.mixed_linear(), estimate="posterior", predictive_draws=5
    ),
    "mb_sgd-full": lambda: mb_sgd(models.linear()),
    "scaffold-gradient": lambda: scaffold(
        models.linear(), control="gradient", batch_size=None, steps=3
    ),
    "mime-adam": lambda: mime(
        models.linear(), step_size=0.01, statistics=optax.scale_by_adam(), steps=3
    ),
    "per_fedavg-first-order": lambda: per_fedavg(
        models.linear(), first_order=True, batch_size=None, steps=3
    ),
    "lg_fedavg-network": lambda: lg_fedavg(
        models.mlp(hidden=(4,), outcome="number"), batch_size=8, adapt_epochs=2
    ),
    "dsgld": lambda: fsgld(models.linear(), step_size=1e-3, surrogates=False, chains=1),
}
