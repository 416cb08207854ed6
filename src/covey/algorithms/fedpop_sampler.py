"""A FedPop client's broadcast and state, and the Markov chain of its effects."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.joint import Joint, Population
from covey.core.algorithm import Empty
from covey.core.shard import Shard
from covey.kernels.kernel import Kernel, StepSize, Target, chain


class Down(NamedTuple):
    """The broadcast.

    Attributes:
        theta: The shared parameters.
        temperature: Divides the log-likelihood; 1 where nothing is annealed, and in what clients
            predict with.
        step_size: The kernel's step size in this round; empty where it is the same in all.
    """

    theta: Population
    temperature: Float[Array, ""]
    step_size: Float[Array, ""] | Empty = Empty()


class Personal(NamedTuple):
    """A client's state.

    Attributes:
        draws: Its newest draws Z_1 .. Z_M of the effects, in the order of the chain.
        memory: The kernel's memory.
    """

    draws: Float[Array, "draws effects"]
    memory: PyTree


class Sampler(NamedTuple):
    """A client's Markov chain for p(z | D_i, theta)."""

    joint: Joint
    kernel: Kernel
    step_size: float | optax.Schedule

    def step_at(self, round_: Int[Array, ""]) -> Float[Array, ""] | Empty:
        """The step size that a broadcast carries, where it depends on the round."""
        return jnp.asarray(self.step_size(round_), float) if callable(self.step_size) else Empty()

    def start(self, theta: Population, draws: int) -> Personal:
        """The state of a client before its first round."""
        start = self.joint.start(theta)
        return Personal(jnp.tile(start, (draws, 1)), self.kernel.init(start))

    def walk(
        self,
        key: Key[Array, ""],
        down: Down,
        data: Shard,
        personal: Personal,
        *,
        burn_in: int,
        draws: int,
    ) -> Personal:
        """Z_1 .. Z_M, from where the chain ended."""
        likelihood = self.joint.model.log_likelihood
        target = Target(
            log_prior=lambda z: self.joint.log_effects(down.theta, z),
            log_likelihood=lambda z, rows: likelihood(down.theta.phi, z, rows) / down.temperature,
            data=data,
        )
        end, memory = personal.draws[-1], personal.memory
        return Personal(
            *chain(
                key,
                self.kernel,
                target,
                end,
                memory,
                step_size=self._step_size(down),
                burn_in=burn_in,
                draws=draws,
            )
        )

    def _step_size(self, down: Down) -> StepSize:
        if not callable(self.step_size):
            return self.step_size
        if isinstance(down.step_size, Empty):
            raise ValueError(
                "fedpop: the step size depends on the round, and this broadcast has none; take it "
                "from the method's own broadcast or publish"
            )
        return down.step_size

    def posterior(
        self,
        key: Key[Array, ""],
        key_prior: Key[Array, ""],
        down: Down,
        data: Shard,
        personal: Personal,
        burn_in: int,
        draws: int,
    ) -> Personal:
        """Draws of the posterior, at temperature 1; of p(z | beta) for a client without rows."""
        cold = down._replace(temperature=jnp.ones(()))
        found = self.walk(key, cold, data, personal, burn_in=burn_in, draws=draws)
        prior = self.joint.prior_draws(key_prior, down.theta, draws)
        return found._replace(draws=jnp.where(data.count == 0, prior, found.draws))

    def adapt(
        self, key: Key[Array, ""], down: Down, data: Shard, *, burn_in: int, draws: int
    ) -> Personal:
        """The state of an unseen client."""
        key, key_prior = jax.random.split(key)
        start = self.start(down.theta, draws)
        if callable(self.step_size):  # the chain begins far off: it needs the first round's steps
            key, key_first = jax.random.split(key)
            first = down._replace(step_size=self.step_at(jnp.int32(0)))
            start = self.walk(key_first, first, data, start, burn_in=burn_in, draws=1)
        return self.posterior(key, key_prior, down, data, start, burn_in, draws)

    def more(
        self,
        key: Key[Array, ""],
        down: Down,
        personal: Personal,
        data: Shard,
        *,
        burn_in: int,
        draws: int,
    ) -> Float[Array, "draws effects"]:
        """A chain from one of the client's draws."""
        key_start, key, key_prior = jax.random.split(key, 3)
        index = jax.random.randint(key_start, (), 0, len(personal.draws))
        start = personal._replace(draws=personal.draws[index][None])
        return self.posterior(key, key_prior, down, data, start, burn_in, draws).draws
