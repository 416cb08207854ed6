"""Runs that end by themselves, methods that prepare, laws that ask: with a mean by halving."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.core.algorithm import (
    Algorithm,
    Approximation,
    Empty,
    Hooks,
    Local,
    Posterior,
    Preparation,
    no_state,
)
from covey.core.shard import all_rows
from covey.data.federated import FederatedData
from covey.models.predictive import Normal
from covey.runs.schedule import next_check

ENGINES = ("simulate", "loop")
simulated = pytest.mark.parametrize(
    "engine", ["simulate", pytest.param("loop", marks=pytest.mark.slow)]
)


class State(NamedTuple):
    mean: jnp.ndarray
    off: jnp.ndarray


class Info(NamedTuple):
    off: jnp.ndarray


def total(key, sent, data):
    batch = all_rows(data)
    return {
        "sum": jnp.sum(jnp.where(batch.mask, batch.rows.y - sent, 0.0)),
        "rows": jnp.sum(batch.mask, dtype=float),
    }


def halving(start=0.0, *, tolerance=1e-3) -> Algorithm:
    """The mean outcome: each round goes half of the way."""

    def server(key, state, aggregate):
        off = aggregate.weighted["sum"] / aggregate.weighted["rows"]
        return State(state.mean + off / 2, off), Info(off)

    def unsettled(state):
        off = float(abs(state.off))
        return None if off < tolerance else f"the mean is off by {off:.2g}; run.advance(10)"

    def fit(down, spec, ask):
        answer = ask("total", down)
        return down + answer["sum"] / answer["rows"], answer["rows"]

    return Algorithm(
        name="halving",
        init=lambda key, spec: State(jnp.asarray(start, float), jnp.asarray(jnp.inf)),
        broadcast=lambda state: state.mean,
        server=server,
        init_client=no_state,
        client=lambda key, down, state, data: Local(total(key, down, data), Empty(), Empty()),
        commit=no_state,
        predict=lambda key, down, state, x: Normal(down * jnp.ones(len(x)), jnp.ones(len(x))),
        adapt=no_state,
        posterior=Posterior(
            shared=Approximation(
                fit,
                lambda key, law, count: {"mean": law[0] * jnp.ones(count)},
                queries={"total": total},
                publish=lambda down, law: law[0],
            )
        ),
        hooks=Hooks(unsettled=unsettled),
    )


def prepared() -> Algorithm:
    """The same, started at the mean."""

    def find(spec, ask):
        answer = ask("total", jnp.zeros(()))
        return answer["sum"] / answer["rows"]

    return halving()._replace(preparation=Preparation(find, halving, {"total": total}))


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    made = {
        str(index): (generator.normal(size=(rows, 1)), generator.normal(3.0, 1.0, size=rows))
        for index, rows in enumerate((4, 9, 0, 6))
    }
    return FederatedData.from_clients(made)


def mean_of(data):
    return float(np.mean(data.rows.y))


@simulated
def test_a_run_ends_where_the_method_has_settled(data, engine):
    run = covey.run(halving(), data, seed=0, engine=engine)
    # the offset of a round is |mean| / 2^(round - 1): the first below 0.001
    expected = 2 + int(np.floor(np.log2(abs(mean_of(data)) / 1e-3)))
    assert run.round == expected
    assert abs(run.metrics["off"].iloc[-1]) < 1e-3 < abs(run.metrics["off"].iloc[-2])


def test_a_run_stopped_too_early_says_so(data):
    with pytest.warns(
        UserWarning, match=r"halving has not settled after 3 rounds: the mean is off"
    ):
        run = covey.run(halving(), data, rounds=3, seed=0)
    run.advance(20)  # no warning, which would be an error here
    assert run.round == 23


def test_a_method_that_cannot_tell_needs_a_number_of_rounds(data):
    never = halving()._replace(hooks=Hooks())
    with pytest.raises(ValueError, match=r"halving cannot tell when to stop.*rounds=100"):
        covey.run(never, data, seed=0)


def test_a_run_that_ends_by_itself_is_resumed(data, tmp_path):
    whole = covey.run(halving(), data, seed=0)
    with pytest.warns(UserWarning, match="has not settled"):
        covey.run(halving(), data, rounds=5, seed=0, out=tmp_path / "run")
    rest = covey.run(halving(), data, seed=0, out=tmp_path / "run", resume=True)
    assert rest.round == whole.round
    assert rest.state.mean == whole.state.mean
    again = covey.run(halving(), data, seed=0, out=tmp_path / "run", resume=True)
    assert again.round == whole.round


@simulated
def test_a_method_is_prepared_by_questions(data, engine):
    run = covey.run(prepared(), data, seed=0, engine=engine)
    assert run.round == 1
    np.testing.assert_allclose(run.state.mean, mean_of(data), rtol=1e-6)
    assert run.questions["question"].tolist() == ["total"]
    assert run.questions["bits_up"].tolist() == [4 * 2 * 32]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_law_reaches_the_clients(data, engine):
    with pytest.warns(UserWarning, match="has not settled"):
        run = covey.run(halving(), data, rounds=1, seed=0, engine=engine)
    found = run.predict(np.zeros((2, 1)), client="0")
    np.testing.assert_allclose(found.mean, mean_of(data), rtol=1e-6)
    assert run.posterior.shared.law[1] == 19
    # one question for both: the law is fitted once per round
    assert len(run.questions) == 1


def test_what_is_asked_is_compiled_once(data):
    """The same query with other numbers is not traced again."""
    traced = []

    def counting(key, sent, data):
        traced.append(1)
        return total(key, sent, data)

    with pytest.warns(UserWarning, match="has not settled"):
        run = covey.run(halving(), data, rounds=1, seed=0)
    ask = run._questions.asker({"total": counting})
    first = ask("total", jnp.zeros(()))
    before = len(traced)
    second = ask("total", jnp.ones(()))
    assert len(traced) == before
    np.testing.assert_allclose(first["sum"] - second["sum"], 19, rtol=1e-5)


def test_answers_that_are_not_finite_are_an_error(data):
    def broken(key, sent, data):
        return jnp.where(data.count == 9, jnp.nan, 1.0)

    with pytest.warns(UserWarning, match="has not settled"):
        run = covey.run(halving(), data, rounds=1, seed=0)
    with pytest.raises(ValueError, match=r"1 of the clients answered 'broken'.*id 1"):
        run._questions.asker({"broken": broken})("broken", jnp.zeros(()))


def test_peers_answer_no_questions(data):
    with pytest.raises(ValueError, match="peers without a server cannot sum over all clients"):
        covey.run(prepared(), data, seed=0, engine="peers")


def test_checks_do_not_depend_on_time():
    rounds = [0]
    while rounds[-1] < 1000:
        rounds.append(next_check(rounds[-1]))
    assert rounds[1:66] == [*range(1, 65), 66]
    gaps = np.diff(rounds[66:])
    assert np.all(gaps <= np.array(rounds[66:-1]) / 32)
    assert np.all(gaps >= 1)
