"""VR-FedEM: FedEM with the noise of minibatches reduced by SPIDER (Dieuleveut, Fort, Moulines and
Robin 2021, algorithm 2).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedem import (
    Info,
    checked_steps,
    evaluate,
    first_state,
    innovation,
    over_all_rows_if,
    over_batch,
    server_step,
)
from covey.algorithms.memory import (
    MemoryInit,
    check_memory,
    need_memory_rate,
    remembered,
    why_diverged,
)
from covey.core import tree
from covey.core.algorithm import Algorithm, Hooks, Local, no_state
from covey.core.shard import some_rows
from covey.models.latent import LatentModel


class Down(NamedTuple):
    """Shat, T(Shat), alpha, and the index of the outer loop; every round of a warm-up has a
    negative index that no other round has.
    """

    statistics: PyTree
    theta: PyTree
    memory_rate: Float[Array, ""]
    outer: Int[Array, ""]


class Tracker(NamedTuple):
    """V_i; S_i with the theta that it belongs to, and the outer loop of its last pass over all
    rows.
    """

    memory: PyTree
    estimate: PyTree
    theta: PyTree
    outer: Int[Array, "*clients"]


class Pending(NamedTuple):
    """The client's state before the upload, and alpha."""

    tracker: Tracker
    memory_rate: Float[Array, "*clients"]


def vr_fedem(
    model: LatentModel,
    *,
    inner: int,
    batch_size: int,
    step_size: float = 0.1,
    memory_rate: float | None = None,
    memory_init: MemoryInit = "zero",
    weighting: Weighting = "rows",
) -> Algorithm:
    """VR-FedEM: FedEM whose minibatch noise vanishes as EM converges.

    FedEM (see `fedem` for Shat, T, V and H) estimates a client's mean statistics anew in every
    round, so that its noise does not vanish. Here client i keeps its estimate and moves it by
    differences on a minibatch B, the same in both terms:

        S_i = S_i + (1/b) sum over j in B of ( s_ij(T(Shat_k)) - s_ij(T(Shat_k-1)) )

    These vanish as Shat settles. Every `inner` rounds S_i is the mean over all rows again.

    Args:
        model: Latent-variable model to fit, e.g. `covey.models.gaussian_mixture`.
        inner: Rounds per outer loop (k_in), the first of which takes a pass over all rows. Theory
            suggests about (1 + omega) sqrt(m / 2) for m rows per client.
        batch_size: Rows per client in the other rounds (b). Theory suggests about
            inner / (1 + omega)^2.
        step_size: Step of the server's statistics (gamma), constant, in (0, 1]. Default 0.1.
        memory_rate: Rate at which the memories learn (alpha). Default: 1 / (1 + omega) of the
            channel, the largest that theory allows.
        memory_init: Start of the memories, "zero" or the paper's "first"; see `fedem`.
        weighting: "rows" counts every row equally, "equal" every client, as in the paper.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import numpy as np, covey
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> data = covey.FederatedData.from_arrays(x, np.abs(x[:, 0]), np.arange(60) % 3)
        >>> lines = covey.models.regression_mixture(components=2)
        >>> method = covey.vr_fedem(lines, inner=5, batch_size=10)
        >>> covey.run(method, data, rounds=10, seed=0).state.theta.coefficients.shape
        (2, 2)

    Departures from the paper: a client keeps T(Shat) of the round that S_i belongs to, so nothing
    more is broadcast, and one that was absent, or whose upload was lost, takes the difference from
    its own last round: the sum still telescopes. It takes its pass over all rows in its first
    round of each outer loop. With all clients in all rounds this is the paper's algorithm; with
    one client and no compression it is SPIDER-EM (Fort, Moulines and Wai 2020).

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, algorithm 2.
    """
    gamma = checked_steps("vr_fedem", step_size, 0.0, batch_size)
    check_memory("vr_fedem", memory_rate, memory_init)
    if inner < 1:
        raise ValueError(f"vr_fedem: inner must be at least 1, got {inner}")

    def init_client(key, down, data):
        zeros = jax.tree.map(jnp.zeros_like, down.statistics)
        return Tracker(zeros, zeros, down.theta, jnp.int32(-1))

    def broadcast(state):
        step = state.step - state.warm_up
        outer = jnp.where(step < 0, -2 - state.step, step // inner)
        return Down(state.statistics, state.theta, state.memory_rate, outer)

    def client(key, down, tracker, data):
        first = tracker.outer != down.outer
        whole = over_all_rows_if(first, model, down.theta, data)
        batch = some_rows(key, data, batch_size)
        now, then = over_batch(model, down.theta, batch), over_batch(model, tracker.theta, batch)
        moved = jax.tree.map(
            lambda s, new, old: s + new - old, tracker.estimate, now.statistics, then.statistics
        )
        estimate = tree.where(first, whole.statistics, moved)
        delta = innovation(estimate, down.statistics, tracker.memory, data, weighting)
        new = Tracker(tracker.memory, estimate, down.theta, down.outer)
        return Local(delta, Pending(new, down.memory_rate), Info(now.loss))

    return Algorithm(
        name="vr_fedem",
        init=lambda key, spec: first_state(
            "vr_fedem", model, key, spec, weighting, memory_rate, memory_init
        ),
        init_client=init_client,
        broadcast=broadcast,
        client=client,
        commit=lambda pending, sent: pending.tracker._replace(
            memory=remembered(pending.tracker.memory, sent, pending.memory_rate)
        ),
        server=lambda key, state, aggregate: server_step(model, gamma, state, aggregate),
        evaluate=lambda key, down, tracker, data: evaluate(model, down.theta, data),
        predict=lambda key, down, tracker, x: model.predictive(down.theta, x),
        adapt=no_state,
        hooks=Hooks(
            validate=lambda plan: need_memory_rate("vr_fedem", memory_rate, plan.omega),
            diagnose=lambda down, data: why_diverged("vr_fedem", down.memory_rate),
        ),
    )
