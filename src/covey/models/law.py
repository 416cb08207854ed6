"""Laws of random effects, p(z | beta): how the effects of clients vary."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Key, PyTree

from covey.core.shard import Spec


class Normaliser(NamedTuple):
    """The gradient by beta of the log of the integral of exp(log_density), where the integral is
    not known in closed form.

    It is the mean of grad_beta log_density under the law itself, estimated by particles of a Markov
    chain that continues from round to round. It needs no data, so the server computes it.

    Attributes:
        init: (key, beta) -> particles.
        gradient: (key, beta, particles) -> (the gradient, the particles after their steps).
    """

    init: Callable[[Key[Array, ""], PyTree], PyTree]
    gradient: Callable[[Key[Array, ""], PyTree, PyTree], tuple[PyTree, PyTree]]


class Law(NamedTuple):
    """A law p(z | beta) of random effects as pure functions of its parameters beta.

    Methods learn beta from the clients' draws of z. `gaussian`, `mixture`, `energy` and `fixed` of
    `covey.models` make laws.

    Attributes:
        init: (key, z, spec) -> beta; z is the value at which a model's effects start.
        log_density: (beta, z) -> log p(z | beta), complete; a law with a normaliser gives it up to
            a constant that may depend on beta.
        start: (beta) -> z, where the chain of a client starts.
        draws: (key, beta, count) -> effects of clients without rows, stacked.
        project: (beta) -> beta within its bounds.
        normaliser: None where log_density is complete.
        transport: (beta, other beta, z) -> the effects that the other law has for the same
            standardised effects; None where the law has no such map.
        learned: Whether beta is learned; if not, clients send nothing about it.
        describe: (beta) -> {name: value}: how clients differ, with one axis or two of effects; None
            where beta has no further description.
    """

    init: Callable[[Key[Array, ""], Float[Array, " effects"], Spec], PyTree]
    log_density: Callable[[PyTree, Float[Array, " effects"]], Float[Array, ""]]
    start: Callable[[PyTree], Float[Array, " effects"]]
    draws: Callable[[Key[Array, ""], PyTree, int], Float[Array, "count effects"]]
    project: Callable[[PyTree], PyTree] = lambda beta: beta
    normaliser: Normaliser | None = None
    transport: (
        Callable[[PyTree, PyTree, Float[Array, " effects"]], Float[Array, " effects"]] | None
    ) = None
    learned: bool = True
    describe: Callable[[PyTree], dict[str, Array]] | None = None
