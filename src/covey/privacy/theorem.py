"""Theorem G.3 of Deng et al. (2024): FA-LD's privacy in closed form.

With T = K R steps in R rounds, substitute-one adjacency, and any delta_0 in (0, 1), delta_1,
delta_2 in [0, 1),

    eps_1    = 2 Delta sqrt(eta log(1.25 / delta_0) / (tau (1 - rho^2) min p_c)),
    eps_K    = eps_1 min{sqrt(2 K log(1 / delta_1)) + K (e^eps_1 - 1), K},
    eps~_K   = log(1 + q (e^eps_K - 1)),
               q = S / N in scheme II, 1 - (1 - 1/N)^S in scheme I,
    eps      = eps~_K min{sqrt(2 R log(1 / delta_2)) + R (e^eps~_K - 1), R},
    delta    = R delta~_K + delta_2,
    delta~_K = q (K gamma delta_0 + delta_1) in scheme II,
               a sum over how often a client is drawn in scheme I,

valid if eta <= tau (1 - rho^2) gamma^2 min p_c / (Delta^2 log(1.25 / delta_0)). Full devices are
scheme II with S = N. The theorem has clients of equal gamma and, in scheme I, equal p_c; where they
are not equal, the worst value of any client is used.

Two limits of it. It composes twice by the strong composition of 2010, and is loose where rounds
are many. And its step from eps_K to eps~_K is amplification by sampling *clients*; the proof
compares a cohort with one in which a client is exchanged for another. That is a change of one row
only where clients look alike to whoever sees the uploads. Against an observer who knows that a
client took part, as the server does, its rows are protected by eps_K and not by eps~_K. `rdp` does
without this step.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, xlog1py

from covey.privacy.mechanism import LangevinMechanism

_LARGEST_EXPONENT = 700.0  # e to a larger power overflows
_LEAST, _MOST = 1e-9, 1e6  # of log(1 / delta_0): below 1, and smaller than anything needed


class OutOfRangeError(ValueError):
    """The step size is too large for the theorem."""


class Deltas(NamedTuple):
    """The three deltas of the theorem, as log(1 / delta); infinite for a delta of zero.

    Logarithms, because scheme I needs deltas below the smallest float.

    Attributes:
        of_noise: log(1 / delta_0), of one step's Gaussian noise.
        of_steps: log(1 / delta_1), of the composition of a round's steps.
        of_rounds: log(1 / delta_2), of the composition of rounds.
    """

    of_noise: float
    of_steps: float
    of_rounds: float


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy with respect to one row that is replaced."""

    epsilon: float
    delta: float


def theorem(mechanism: LangevinMechanism, *, rounds: int, delta: float) -> float:
    """Epsilon by theorem G.3: the smallest over some ways to divide delta.

    Each of the two compositions may go without a part of delta; the rest is divided equally.

    Args:
        mechanism: Settings of a round; with minibatches of a fixed size.
        rounds: Number of rounds (R).
        delta: Delta of the (epsilon, delta) that is accounted.

    Returns:
        Epsilon.

    Raises:
        OutOfRangeError: the step size is outside of the theorem's range; the message names the
            largest permitted.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> round(theorem(round_, rounds=100, delta=1e-5), 2)
        21.28

    Reference: Deng et al. (2024), On convergence of federated averaging Langevin dynamics,
    theorem G.3.
    """
    ways = divisions(mechanism, rounds=rounds, delta=delta)
    allowed = [way for way in ways if mechanism.step_size <= largest_step_size(mechanism, way)]
    if not allowed:
        largest = _rounded_down(
            max((largest_step_size(mechanism, way) for way in ways), default=0.0)
        )
        raise OutOfRangeError(
            f"step_size={mechanism.step_size:g} is outside of the range of FA-LD's privacy "
            f"theorem: with delta={delta:g} and {rounds} rounds it must not exceed {largest}. Make "
            "it smaller; or make the minibatches or the temperature larger, the correlation or "
            "the clipping norm smaller; or account by rdp alone"
        )
    return min(guarantee(mechanism, rounds=rounds, deltas=way).epsilon for way in allowed)


def largest_permitted(mechanism: LangevinMechanism, *, rounds: int, delta: float) -> float:
    """The largest step size for which `theorem` holds.

    Args:
        mechanism: Settings of a round; its step size does not matter.
        rounds: Number of rounds (R).
        delta: Delta of the (epsilon, delta) that is accounted.

    Returns:
        The step size; 0 where no step is small enough.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1.0, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> f"{largest_permitted(round_, rounds=100, delta=1e-5):.2g}"
        '0.00023'
    """
    return max(
        (
            largest_step_size(mechanism, way)
            for way in divisions(mechanism, rounds=rounds, delta=delta)
        ),
        default=0.0,
    )


def guarantee(mechanism: LangevinMechanism, *, rounds: int, deltas: Deltas) -> Guarantee:
    """Theorem G.3 as it is printed; its condition on the step size is not checked.

    Args:
        mechanism: Settings of a round; with minibatches of a fixed size.
        rounds: Number of rounds (R).
        deltas: delta_0, delta_1 and delta_2, as log(1 / delta).

    Returns:
        Epsilon and delta of all rounds together.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> found = guarantee(round_, rounds=1, deltas=Deltas(10.0, math.inf, math.inf))
        >>> f"{found.epsilon:.3f}, {found.delta:.1e}"
        '0.202, 9.1e-05'
    """
    _check_fixed(mechanism)
    private = mechanism.private_temperature * float(mechanism.shares[0])
    log_term = math.log(1.25) + deltas.of_noise
    of_step = (
        2 * mechanism.sensitivity * math.sqrt(mechanism.step_size * log_term / private)
        if private
        else math.inf
    )
    of_client = _composed(of_step, mechanism.steps, deltas.of_steps)
    delta = rounds * _exp(_log_delta_of_round(mechanism, deltas, of_client)) + math.exp(
        -deltas.of_rounds
    )
    if not of_client < _LARGEST_EXPONENT:
        return Guarantee(math.inf, delta)
    of_round = math.log1p(_chance(mechanism) * math.expm1(of_client))
    return Guarantee(_composed(of_round, rounds, deltas.of_rounds), delta)


def largest_step_size(mechanism: LangevinMechanism, deltas: Deltas) -> float:
    """The condition of the theorem: the largest eta for these deltas.

    Args:
        mechanism: Settings of a round; its step size does not matter.
        deltas: delta_0, delta_1 and delta_2, as log(1 / delta); only the first matters.

    Returns:
        The step size; 0 where no step is small enough.
    """
    of_clients = float(np.min(mechanism.rates**2 * mechanism.shares))
    return (
        mechanism.private_temperature
        * of_clients
        / (mechanism.sensitivity**2 * (math.log(1.25) + deltas.of_noise))
    )


def _composed(epsilon: float, times: int, log_inverse_delta: float) -> float:
    """Strong or plain composition, whichever is less."""
    if not epsilon < _LARGEST_EXPONENT:
        return math.inf
    return epsilon * min(
        math.sqrt(2 * times * log_inverse_delta) + times * math.expm1(epsilon), times
    )


def _chance(mechanism: LangevinMechanism) -> float:
    return float(mechanism.chances.max())


def _log_delta_of_round(mechanism: LangevinMechanism, deltas: Deltas, epsilon: float) -> float:
    """The logarithm of delta~_K; epsilon is eps_K."""
    of_client = math.log(mechanism.steps * float(mechanism.rates.max()))
    if mechanism.scheme != "weighted":
        return math.log(_chance(mechanism)) + float(
            np.logaddexp(of_client - deltas.of_noise, -deltas.of_steps)
        )
    times = np.arange(1, mechanism.draws + 1)
    of_noise = math.log(1.25) + of_client - (math.log(1.25) + deltas.of_noise) / times**2
    return float(
        np.logaddexp.reduce(
            _log_burden(mechanism, times, epsilon) + np.logaddexp(of_noise, -deltas.of_steps)
        )
    )


def _log_burden(mechanism: LangevinMechanism, times: np.ndarray, epsilon: float) -> np.ndarray:
    """Scheme I: the probability that a client is drawn `times` times, times what that does to its
    delta; in logarithms.
    """
    draws, share = mechanism.draws, float(mechanism.shares.max())
    choices = gammaln(draws + 1) - gammaln(times + 1) - gammaln(draws - times + 1)
    others = xlog1py(draws - times, -share)
    if not 0 < epsilon < math.inf:
        return np.full(len(times), math.inf)
    return (
        choices
        + times * math.log(share)
        + others
        + _log_expm1(np.full(len(times), epsilon))
        - _log_expm1(epsilon / times)
    )


def _exp(x: float) -> float:
    return math.exp(x) if x < _LARGEST_EXPONENT else math.inf


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """The logarithm of e^x - 1, also where e^x overflows."""
    return x + np.log(-np.expm1(-x))


def divisions(mechanism: LangevinMechanism, *, rounds: int, delta: float) -> list[Deltas]:
    """Ways to divide delta: steps and rounds may go without, as plain composition needs none.

    Args:
        mechanism: Settings of a round; with minibatches of a fixed size.
        rounds: Number of rounds (R).
        delta: Delta to divide.

    Returns:
        Up to four ways; fewer where no delta_0 is small enough.
    """
    if not 0 < delta < 1:
        raise ValueError(f"privacy: delta must be in (0, 1), got {delta:g}")
    if rounds < 1:
        raise ValueError(f"privacy: rounds must be at least 1, got {rounds}")
    _check_fixed(mechanism)
    ways = []
    for for_steps, for_rounds in itertools.product((False, True), repeat=2):
        part = delta / (1 + for_steps + for_rounds)
        of_steps = _log_inverse_of_steps(mechanism, part / rounds) if for_steps else math.inf
        of_rounds = -math.log(part) if for_rounds else math.inf
        of_noise = _log_inverse_of_noise(mechanism, part / rounds)
        if of_noise is not None:
            ways.append(Deltas(of_noise, of_steps, of_rounds))
    return ways


def _largest_epsilon_of_round(mechanism: LangevinMechanism, of_steps: float) -> float:
    """eps_K at the largest permitted step size, where eps_1 = 2 gamma whatever delta_0 is."""
    of_step = 2 * math.sqrt(
        float(np.min(mechanism.rates**2 * mechanism.shares) / mechanism.shares[0])
    )
    return _composed(of_step, mechanism.steps, of_steps)


def _log_inverse_of_steps(mechanism: LangevinMechanism, part: float) -> float:
    """The log(1 / delta_1) with which delta_1 takes no more than its part of delta~_K."""
    if mechanism.scheme != "weighted":
        return max(math.log(_chance(mechanism) / part), 0.0)
    times, found = np.arange(1, mechanism.draws + 1), -math.log(part)
    # eps_K grows with log(1 / delta_1), and the burden with eps_K: a fixed point, from below.
    for _ in range(50):
        burden = np.logaddexp.reduce(
            _log_burden(mechanism, times, _largest_epsilon_of_round(mechanism, found))
        )
        found, before = max(float(burden) - math.log(part), found), found
        if found <= before:
            break
    return found


def _log_inverse_of_noise(mechanism: LangevinMechanism, part: float) -> float | None:
    """The log(1 / delta_0), the smallest with which delta_0 takes no more than its part of
    delta~_K; None where there is none.
    """
    from scipy.optimize import root_scalar  # takes half a second to import

    epsilon = _largest_epsilon_of_round(mechanism, math.inf)

    def excess(of_noise):
        return _log_delta_of_round(
            mechanism, Deltas(of_noise, math.inf, math.inf), epsilon
        ) - math.log(part)

    if excess(_LEAST) <= 0:
        return _LEAST
    return (
        None
        if excess(_MOST) > 0
        else float(root_scalar(excess, bracket=(_LEAST, _MOST)).root) * (1 + 1e-9)
    )


def _check_fixed(mechanism: LangevinMechanism) -> None:
    if mechanism.sampling != "fixed":
        raise ValueError(
            "FA-LD's privacy theorem is for minibatches of fixed size and one row replaced; "
            "account poisson sampling, where one row is zeroed out, by rdp or pld"
        )


def _rounded_down(value: float) -> str:
    """Four digits, rounded down, as the value is a limit."""
    if not value:
        return "0 (no step is small enough)"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / scale) * scale:.4g}"
