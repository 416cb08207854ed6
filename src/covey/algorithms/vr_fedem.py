"""VR-FedEM: FedEM with the variance of minibatches reduced by SPIDER.

Dieuleveut, Fort, Moulines and Robin (2021), algorithm 2. FedEM (see there for Shat, T, V and H)
estimates a client's mean statistics anew in every round, so that its noise never ends. Here client
i keeps its estimate and moves it by differences on a minibatch B,

    S_i = S_i + (1/b) sum over j in B of ( s_ij(T(Shat_k)) - s_ij(T(Shat_k-1)) ),    the same B in both terms,

which vanish as Shat settles; every `inner` rounds S_i is the mean over all rows again. Theory:
alpha = 1 / (1 + omega), constant gamma, batches of about inner / (1 + omega)^2 rows, inner about (1
+ omega) sqrt(m / 2) for m rows a client.

A client keeps T(Shat) of the round that S_i belongs to, so nothing more is broadcast, and one that
was not there, or whose upload was lost, takes the difference from where it stands: the sum still
telescopes. In its first round of each outer loop it makes its pass over all rows. With all clients
in all rounds this is the paper's algorithm; with one client and no compression it is SPIDER-EM
(Fort, Moulines and Wai 2020).
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedem import (
    Info,
    checked_steps,
    evaluate,
    first_state,
    innovation,
    over_all_rows,
    over_batch,
    remembered,
    server_step,
)
from covey.core import tree
from covey.core.algorithm import Algorithm, Local, no_state
from covey.core.shard import some_rows
from covey.models.latent import LatentModel


class Down(NamedTuple):
    """Shat, T(Shat), and the number of the outer loop."""

    statistics: PyTree
    theta: PyTree
    outer: Int[Array, ""]


class Tracker(NamedTuple):
    """V_i; S_i with the theta that it belongs to, and the outer loop of its last pass over all
    rows.
    """

    memory: PyTree
    estimate: PyTree
    theta: PyTree
    outer: Int[Array, "*clients"]


def vr_fedem(
    model: LatentModel,
    *,
    inner: int,
    batch_size: int,
    step_size: float = 0.1,
    memory_rate: float = 0.5,
    weighting: Weighting = "rows",
) -> Algorithm:
    """VR-FedEM: all rows every `inner` rounds, `batch_size` rows in the others; gamma =
    `step_size`, alpha = `memory_rate`.
    """
    steps = checked_steps("vr_fedem", step_size, 0.0, memory_rate, batch_size)
    if inner < 1:
        raise ValueError(f"vr_fedem: inner must be at least 1, got {inner}")

    def init_client(key, down, data):
        zeros = jax.tree.map(jnp.zeros_like, down.statistics)
        return Tracker(zeros, zeros, down.theta, jnp.int32(-1))

    def client(key, down, tracker, data):
        first = tracker.outer != down.outer
        # A pass over no rows takes no time: only rounds that begin an outer loop pay for one.
        whole = over_all_rows(
            model, down.theta, replace(data, count=jnp.where(first, data.count, 0))
        )
        batch = some_rows(key, data, batch_size)
        now, then = over_batch(model, down.theta, batch), over_batch(model, tracker.theta, batch)
        moved = jax.tree.map(
            lambda s, new, old: s + new - old, tracker.estimate, now.statistics, then.statistics
        )
        estimate = tree.where(first, whole.statistics, moved)
        delta = innovation(estimate, down.statistics, tracker.memory, data, weighting)
        return Local(
            delta, Tracker(tracker.memory, estimate, down.theta, down.outer), Info(now.loss)
        )

    return Algorithm(
        name="vr_fedem",
        init=lambda key, spec: first_state("vr_fedem", model, key, spec, weighting),
        init_client=init_client,
        broadcast=lambda state: Down(state.statistics, state.theta, state.step // inner),
        client=client,
        commit=lambda pending, sent: pending._replace(
            memory=remembered(pending.memory, sent, memory_rate)
        ),
        server=lambda key, state, aggregate: server_step(model, steps, state, aggregate),
        evaluate=lambda key, down, tracker, data: evaluate(model, down.theta, data),
        predict=lambda key, down, tracker, x: model.predictive(down.theta, x),
        adapt=no_state,
    )
