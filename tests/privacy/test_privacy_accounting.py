"""What a mechanism costs: the theorem against arithmetic by hand, accountants against exact laws
and against each other.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm

from covey.privacy import Deltas, LangevinMechanism, guarantee, largest_permitted, pld, rdp, theorem
from covey.privacy.theorem import divisions, largest_step_size

DELTA = 1e-5


def mechanism(**changes: object) -> LangevinMechanism:
    given: dict = {
        "step_size": 1e-6,
        "temperature": 1.0,
        "correlation": 0.0,
        "clip": 0.5,
        "local_steps": 10,
    }
    given |= {"rows": (1000,) * 10, "batch_size": 200}
    return LangevinMechanism(**(given | changes))


def delta_of_gaussian(epsilon: float, noise: float) -> float:
    """The exact delta of the Gaussian mechanism (Balle and Wang, 2018)."""
    return float(
        norm.cdf(0.5 / noise - epsilon * noise)
        - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise)
    )


def test_theorem_of_scheme_two_is_what_it_is_by_hand():
    # N = 10 clients with p_c = 0.1, gamma = 20/100 = 0.2, C = 0.5 so that Delta = 1, tau (1 -
    # rho^2) = 2 (1 - 0.36) = 1.28, delta_0 = 1.25e-5 so that log(1.25 / delta_0) = log(1e5) =
    # 11.512925465, eta = 1.28e-5 / 11.512925465 = 1.111794e-6.
    eta = 1.28e-5 / 11.512925465
    two = mechanism(
        step_size=eta,
        temperature=2.0,
        correlation=0.6,
        local_steps=100,
        rows=(100,) * 10,
        batch_size=20,
        scheme="uniform",
        cohort_size=5,
    )
    deltas = Deltas(math.log(1 / 1.25e-5), math.log(1 / 1e-3), math.log(1 / 1e-4))
    # eps_1 = 2 sqrt(eta 11.512925465 / (1.28 0.1)) = 2 sqrt(1.28e-5 / 0.128) = 2 sqrt(1e-4) = 0.02
    # eps_K = 0.02 (sqrt(200 log 1000) + 100 (e^0.02 - 1)) = 0.02 (sqrt(200 6.907755279) + 100
    # 0.020201340)       = 0.02 (37.169221 + 2.020134) = 0.783787, less than 0.02 100 = 2 eps~  =
    # log(1 + 0.5 (e^0.783787 - 1)) = log(1 + 0.5 1.189749) = log 1.594875 = 0.466795 of 50 rounds:
    # 0.466795 min{sqrt(100 log 1e4) + 50 0.594875, 50} = 0.466795 min{30.348543 + 29.743725, 50} =
    # 23.339750 delta = 50 0.5 (100 0.2 1.25e-5 + 1e-3) + 1e-4 = 25 0.00125 + 0.0001 = 0.03135
    found = guarantee(two, rounds=50, deltas=deltas)
    assert found.epsilon == pytest.approx(23.33975, rel=1e-5)
    assert found.delta == pytest.approx(0.03135, rel=1e-9)
    # of 400 rounds the strong composition is less: 0.466795 (sqrt(800 9.210340372) + 400 0.594875)
    #       = 0.466795 (85.838640 + 237.949800) = 151.142825, less than 0.466795 400 = 186.718
    assert guarantee(two, rounds=400, deltas=deltas).epsilon == pytest.approx(151.1428, rel=1e-5)


def test_theorem_of_scheme_one_is_what_it_is_by_hand():
    # As above with N = 2 clients, p_c = 0.5, S = 2 draws, K = 1, gamma = 0.2: eps_1 = 2
    # sqrt(1.28e-5 / (1.28 0.5)) = 0.008944272
    eta = 1.28e-5 / 11.512925465
    one = mechanism(
        step_size=eta,
        temperature=2.0,
        correlation=0.6,
        local_steps=1,
        rows=(100, 100),
        batch_size=20,
        scheme="weighted",
        cohort_size=2,
    )
    deltas = Deltas(math.log(1 / 1.25e-5), math.log(1 / 1e-3), math.inf)
    # eps_K = eps_1, as K = 1 is less than sqrt(2 log 1000) + ...; 1 - (1 - 1/2)^2 = 0.75 eps~ =
    # log(1 + 0.75 (e^0.008944272 - 1)) = log(1 + 0.75 0.008984391) = log 1.006738293 = 0.006715690
    # drawn once, with chance 2 0.5 0.5 = 0.5:  1.25 0.2 1e-5 + 1e-3 = 1.0025e-3 drawn twice, with
    # chance 0.25: (e^0.008944272 - 1) / (e^0.004472136 - 1) (1.25 0.2 (1e-5)^(1/4) + 1e-3)   =
    # 2.004482151 (0.25 0.0562341325 + 0.001) = 2.004482151 0.0150585331 = 0.0301845609 delta~ = 0.5
    # 1.0025e-3 + 0.25 0.0301845609 = 0.00804739; of 3 rounds, without delta_2: 3 times both
    found = guarantee(one, rounds=3, deltas=deltas)
    assert found.epsilon == pytest.approx(3 * 0.00671569, rel=1e-5)
    assert found.delta == pytest.approx(3 * 0.00804739, rel=1e-5)


@pytest.mark.parametrize(
    "way", [{}, {"scheme": "uniform", "cohort_size": 3}, {"scheme": "weighted", "cohort_size": 3}]
)
def test_the_delta_that_was_asked_for_is_met_and_the_step_size_is_bounded(way):
    some = mechanism(**way)
    largest = largest_permitted(some, rounds=50, delta=DELTA)
    for deltas in divisions(some, rounds=50, delta=DELTA):
        at_its_largest = replace(some, step_size=largest_step_size(some, deltas))
        assert guarantee(at_its_largest, rounds=50, deltas=deltas).delta <= DELTA * (1 + 1e-6)
    assert theorem(replace(some, step_size=largest), rounds=50, delta=DELTA) > 0
    with pytest.raises(ValueError, match=r"must not exceed") as error:
        theorem(replace(some, step_size=1.01 * largest), rounds=50, delta=DELTA)
    named = float(str(error.value).split("must not exceed ")[1].split(". ")[0])
    assert 0.998 * largest < named <= largest
    assert theorem(replace(some, step_size=named), rounds=50, delta=DELTA) > 0


def test_noise_is_the_standard_deviation_over_the_sensitivity():
    some = mechanism(temperature=0.7, correlation=0.3, rows=(500, 1500), step_size=2e-5, clip=0.25)
    for index, (rows, share) in enumerate(((500, 0.25), (1500, 0.75))):
        sensitivity = 2e-5 / ((200 / rows) * share) * (2 * 0.25)
        deviation = math.sqrt(2 * 2e-5 * 0.7 * (1 - 0.09) / share)
        assert some.noises[index] == pytest.approx(deviation / sensitivity)


def test_groups_are_never_better_than_their_clients():
    some = mechanism(rows=tuple(range(300, 420)), scheme="weighted", cohort_size=4)
    assert len(some.groups) == 16
    for rate, noise, chance in zip(some.rates, some.noises, some.chances, strict=True):
        assert any(
            g.batch / g.rows >= rate and g.noise <= noise and g.chance >= chance
            for g in some.groups
        )


def test_rdp_and_pld_bound_the_exact_gaussian_mechanism():
    """All rows, everyone: K R steps are one Gaussian mechanism of noise z / sqrt(K R), whose
    epsilon is known.
    """
    some = mechanism(batch_size=None, step_size=1e-4)
    noise = float(some.noises[0]) / math.sqrt(10 * 20)
    exact = brentq(lambda epsilon: delta_of_gaussian(epsilon, noise) - DELTA, 1e-3, 50)
    assert exact < rdp(some, rounds=20, delta=DELTA) < 1.15 * exact
    assert pld(some, rounds=20, delta=DELTA) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_rdp_bounds_a_step_on_some_of_the_rows(sampling):
    """All other rows have no gradient: the sum is a mixture of two Gaussians, and its exact delta
    an integral on a line.

    One row of norm C is replaced by its opposite, or with Poisson sampling by nothing (zero-out).
    The line is in units of C.
    """
    some = mechanism(local_steps=1, batch_size=300, step_size=1.5e-2, sampling=sampling)
    noise, at = float(some.noises[0]), np.linspace(-12, 12, 200_001)
    spread = noise * some.sensitivity / some.clip
    here = 0.7 * norm.pdf(at, 0, spread) + 0.3 * norm.pdf(at, 1, spread)
    there = (
        0.7 * norm.pdf(at, 0, spread) + 0.3 * norm.pdf(at, -1, spread)
        if sampling == "fixed"
        else norm.pdf(at, 0, spread)
    )

    def exact(epsilon: float) -> float:
        return float(np.sum(np.maximum(here - math.exp(epsilon) * there, 0)) * (at[1] - at[0]))

    least = brentq(lambda epsilon: exact(epsilon) - DELTA, 0.0, 20)
    assert least < rdp(some, rounds=1, delta=DELTA) < 3 * least


def test_known_cohorts_are_an_average_over_who_takes_part():
    """Exactly, with all rows: delta(epsilon) is the mean, over the rounds a client is in, of the
    Gaussian mechanism's.
    """
    some = mechanism(batch_size=None, step_size=1e-3, scheme="uniform", cohort_size=3)
    taken = np.arange(1, 31)
    chances = binom.pmf(taken, 30, 0.3)

    def excess(epsilon):
        each = [
            delta_of_gaussian(epsilon, float(some.noises[0]) / math.sqrt(10 * times))
            for times in taken
        ]
        return float(chances @ each) - DELTA

    exact = brentq(excess, 1e-3, 60)
    assert exact < rdp(some, rounds=30, delta=DELTA) < 1.2 * exact
    assert (
        exact < pld(some, rounds=30, delta=DELTA) < 1.6 * exact
    )  # a quantile of the rounds taken part in, not their law


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    batch=st.sampled_from((10, 50, 200, 1000)),
    of_largest=st.floats(0.03, 1.0),
    local_steps=st.integers(1, 100),
    steps=st.integers(200, 20_000),
    temperature=st.floats(0.05, 2.0),
    correlation=st.floats(0.0, 0.95),
    clip=st.floats(0.1, 10.0),
    delta=st.sampled_from((1e-4, 1e-5, 1e-6)),
)
def test_rdp_is_below_the_theorem_where_everyone_takes_part(
    batch, of_largest, local_steps, steps, temperature, correlation, clip, delta
):
    rounds = max(steps // local_steps, 1)
    some = mechanism(
        batch_size=batch,
        local_steps=local_steps,
        temperature=temperature,
        correlation=correlation,
        clip=clip,
        rows=(1000,) * 10,
    )
    some = replace(some, step_size=of_largest * largest_permitted(some, rounds=rounds, delta=delta))
    assert rdp(some, rounds=rounds, delta=delta) < theorem(some, rounds=rounds, delta=delta)


def test_rdp_is_above_the_theorem_for_very_few_steps():
    """Known and not hidden: Renyi divergences of one step on few of the rows convert to (epsilon,
    delta) with a loss.
    """
    few = mechanism(local_steps=1, batch_size=10)
    few = replace(few, step_size=largest_permitted(few, rounds=1, delta=DELTA))
    assert rdp(few, rounds=1, delta=DELTA) > theorem(few, rounds=1, delta=DELTA)
    more = replace(few, step_size=few.step_size / 2)
    assert rdp(more, rounds=100, delta=DELTA) < theorem(more, rounds=100, delta=DELTA)


def test_the_theorem_of_partial_devices_does_not_hold_against_those_who_know_the_cohort():
    """One round of one step on all rows: an observer who knows that the client took part sees a
    plain Gaussian mechanism.

    Its delta at the theorem's epsilon, times the chance 1/100 to take part, is thousands of times
    what the theorem says. `rdp` holds. The same observer need not be told who took part, where
    clients' data differ by more than one row.
    """
    some = mechanism(
        local_steps=1, batch_size=None, rows=(1000,) * 100, scheme="uniform", cohort_size=1
    )
    some = replace(some, step_size=largest_permitted(some, rounds=1, delta=DELTA))

    def exact(epsilon: float) -> float:
        return 0.01 * delta_of_gaussian(epsilon, float(some.noises[0]))

    assert exact(theorem(some, rounds=1, delta=DELTA)) > 30 * DELTA
    assert exact(rdp(some, rounds=1, delta=DELTA)) <= DELTA


def test_noise_that_all_share_protects_nothing():
    assert rdp(mechanism(correlation=1.0), rounds=1, delta=DELTA) == math.inf
    assert pld(mechanism(correlation=1.0, sampling="poisson"), rounds=1, delta=DELTA) == math.inf
    assert largest_permitted(mechanism(correlation=1.0), rounds=1, delta=DELTA) == 0
    with pytest.raises(ValueError, match="must not exceed 0"):
        theorem(mechanism(correlation=1.0), rounds=1, delta=DELTA)


def test_every_chain_costs_as_much_as_one():
    four, long = mechanism(chains=4), mechanism(local_steps=40)
    assert (
        rdp(four, rounds=20, delta=DELTA)
        == rdp(long, rounds=20, delta=DELTA)
        > rdp(mechanism(), rounds=20, delta=DELTA)
    )
    assert theorem(four, rounds=20, delta=DELTA) == theorem(long, rounds=20, delta=DELTA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0"),
        ({"step_size": -1.0}, "step_size must be a finite number above 0"),
        ({"clip": math.inf}, "clip must be a finite number above 0"),
        ({"correlation": 1.2}, r"correlation \(rho\) must be in \[0, 1\], got 1.2"),
        (
            {"scheme": "uniform", "cohort_size": 11},
            "a cohort of 11 of 10 clients; choose a size up to 10",
        ),
        ({"scheme": "uniform"}, "cohort_size goes with scheme 'uniform' or 'weighted'"),
        ({"rows": (3, 0)}, "every client needs at least one training row"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        mechanism(**change)


def test_accountants_say_what_they_are_not_for():
    with pytest.raises(
        ValueError, match="no privacy loss distribution for minibatches of fixed size"
    ):
        pld(mechanism(), rounds=1, delta=DELTA)
    for call in (
        lambda some: theorem(some, rounds=1, delta=DELTA),
        lambda some: guarantee(some, rounds=1, deltas=Deltas(10.0, 10.0, 10.0)),
    ):
        with pytest.raises(
            ValueError, match="is for minibatches of fixed size and one row replaced"
        ):
            call(mechanism(sampling="poisson"))
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 0"):
        rdp(mechanism(), rounds=1, delta=0.0)
