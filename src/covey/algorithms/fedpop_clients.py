"""FedPop's clients between rounds: they draw their effects anew and predict with the draws."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from covey.algorithms.fedpop_sampler import Down, Personal, Sampler
from covey.core.algorithm import Algorithm
from covey.core.shard import Shard
from covey.models.mixed import averaged


class Clients(NamedTuple):
    """Predictions and posteriors of clients.

    Attributes:
        sampler: The Markov chain of a client's effects.
        burn_in: Transitions before the draws of a client that took part.
        adapt_burn_in: The same for an unseen client.
        draws: Draws that a prediction averages over.
    """

    sampler: Sampler
    burn_in: int
    adapt_burn_in: int
    draws: int

    def predict(self, key: Key[Array, ""], down: Down, personal: Personal, x: PyTree) -> PyTree:
        """The predictive distribution, averaged over the draws."""
        model = self.sampler.joint.model
        return averaged(lambda z: model.predictive(down.theta.phi, z, x), personal.draws)

    def adapt(self, key: Key[Array, ""], down: Down, data: Shard) -> Personal:
        """The state of an unseen client."""
        return self.sampler.adapt(key, down, data, burn_in=self.adapt_burn_in, draws=self.draws)

    def refresh(self, key: Key[Array, ""], down: Down, personal: Personal, data: Shard) -> Personal:
        """Draws under the newest parameters."""
        key, key_prior = jax.random.split(key)
        return self.sampler.posterior(
            key, key_prior, down, data, personal, self.burn_in, self.draws
        )

    def posterior(
        self, key: Key[Array, ""], down: Down, personal: Personal, data: Shard, count: int
    ) -> PyTree:
        """Draws of the posterior of a client's effects, as the model describes them."""
        found = self.sampler.more(key, down, personal, data, burn_in=self.burn_in, draws=count)
        describe = self.sampler.joint.model.describe
        return found if describe is None else jax.vmap(lambda z: describe(down.theta.phi, z))(found)


def with_any_draws(clients: Clients, algorithm: Algorithm) -> Algorithm:
    """The method, so that predictions can also average over another count of draws."""

    def averaged_over(count: int) -> Algorithm:
        other = clients._replace(draws=count)
        return algorithm._replace(adapt=other.adapt, refresh=other.refresh)

    posterior = algorithm.posterior._replace(averaged_over=averaged_over)
    return algorithm._replace(posterior=posterior)
