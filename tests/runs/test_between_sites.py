"""A run between sites is a run like any other: questions, posterior, directory, resume."""

from itertools import count

import jax
import numpy as np
import pytest
from methods import METHODS
from problems import linear_gaussian

from covey import models
from covey.algorithms.fald import fald
from covey.algorithms.marginal import marginal
from covey.engines.connection import Connection
from covey.engines.reception import NoQuorumError
from covey.engines.setup import spec_of
from covey.engines.site import Site
from covey.engines.site_programs import Workshop
from covey.engines.site_store import SqliteStore
from covey.engines.transport import MemoryTransport
from covey.runs.between_sites import conclude, run_between_sites
from covey.runs.launch import run
from sites import DIGEST, STUDY, shards_of


@pytest.fixture(scope="module")
def data():
    return linear_gaussian(sizes=(12, 16, 10, 14, 9)).data.split(validation=0.2, test=0, seed=1)


class Deployment:
    """Sites with stores on disk, each of which makes its own programs as a process would; here
    they share them.
    """

    def __init__(self, method, data, folder):
        self.data, self.clock, self.folder = data, count(1), folder
        self.workshop = Workshop(method, spec_of(data.roster), seed=3)
        self.transport, self.sites, self.stores = MemoryTransport({}), {}, {}
        for at in range(data.clients):
            self.start(at)

    def start(self, at):
        name = self.data.name_of(at)
        if name in self.stores:
            self.stores[name].close()
        self.stores[name] = SqliteStore(
            self.folder / f"{name}.sqlite", study=STUDY, digest=DIGEST, site=name
        )
        self.sites[name] = Site(
            name,
            int(self.data.ids[at]),
            self.workshop,
            shards_of(self.data, at),
            study=STUDY,
            digest=DIGEST,
            store=self.stores[name],
        )
        self.transport.handlers[name] = self.sites[name].handle

    def connection(self):
        return Connection(
            self.transport, study=STUDY, digest=DIGEST, clock=lambda: next(self.clock)
        )

    def close(self):
        for store in self.stores.values():
            store.close()


@pytest.fixture
def deploy(data, tmp_path):
    made = []

    def deployed(method):
        made.append(Deployment(method, data, tmp_path / f"sites{len(made)}"))
        return made[-1]

    yield deployed
    for each in made:
        each.close()


def assert_close(one, other, tolerance=1e-4):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_a_posterior_by_questions_and_predictions_at_the_sites(data, deploy):
    method = marginal(models.mixed_linear(), estimate="posterior", predictive_draws=5)
    world = deploy(method)
    options = {"seed": 3, "progress": False, "rounds": 8}
    ours = run_between_sites(method, data.roster, world.connection(), **options)
    theirs = run(method, data, **options)
    assert_close(theirs.state, ours.state)
    law, expected = ours.posterior.shared.law, theirs.posterior.shared.law
    np.testing.assert_allclose(
        law.table().select_dtypes("number"),
        expected.table().select_dtypes("number"),
        rtol=1e-3,
        atol=1e-3,
    )
    asked = ours.questions
    assert set(asked["question"]) == set(theirs.questions["question"])
    assert (asked["clients"] == data.clients).all()
    found = [each.evaluate(split="validation").metrics for each in (theirs, ours)]
    assert_close(*found, 1e-3)
    with pytest.raises(ValueError, match="made at the site"):
        ours.posterior.client("site1").draws(5)
    assert conclude(ours) == ()
    last, down = world.sites["site1"].published()
    assert last == ours.round
    x = np.asarray(data.rows_of(1, "train").x)
    at_the_site = world.sites["site1"].predict(last, down, x).mean
    np.testing.assert_allclose(
        at_the_site, theirs.predict(x, client="site1", standardised=True).mean, rtol=1e-3, atol=1e-3
    )


@pytest.mark.slow
def test_a_method_that_prepares_itself(data, deploy):
    """What the server finds out reaches the sites, which prepare the same method."""
    method = fald(models.linear(), keep=3, chains=2, burn_in=1)
    world = deploy(method)
    options = {"rounds": 3, "seed": 3, "progress": False}
    with pytest.warns(UserWarning, match="has not settled after 3 rounds"):
        ours = run_between_sites(method, data.roster, world.connection(), **options)
    with pytest.warns(UserWarning, match="has not settled after 3 rounds"):
        theirs = run(method, data, **options)
    assert_close(theirs.state, ours.state, 1e-3)
    world.transport.killed.add("site2")
    with pytest.raises(NoQuorumError, match="'site2' did not answer in time"):
        run_between_sites(method, data.roster, world.connection(), rounds=3, progress=False)


@pytest.mark.slow
def test_a_killed_server_is_resumed_and_ends_as_if_undisturbed(data, deploy, tmp_path):
    method = METHODS["fedem"]()
    world = deploy(method)
    options = {"seed": 3, "progress": False}

    def go(rounds, **more):
        connection = world.connection()
        return run_between_sites(
            method, data.roster, connection, rounds=rounds, out=tmp_path / "run", **options, **more
        )

    go(3)
    world.transport.killed.add("site0")
    with pytest.raises(NoQuorumError, match=r"round 4: 4 of 5 sites .*'site0' did not answer"):
        go(6, resume=True)
    world.transport.killed.clear()
    world.start(0)  # a new process on the old store
    ended = go(6, resume=True, evaluate_every=None)
    undisturbed = run(method, data, rounds=6, **options)
    assert_close(undisturbed.state, ended.state)
    assert ended.metrics["clients"].tolist() == [5] * 6
    assert (tmp_path / "run" / "report.html").exists()
    with pytest.raises(ValueError, match="data_digest"):
        run_between_sites(
            method,
            data.subset([0, 1, 2]).roster,
            world.connection(),
            rounds=7,
            out=tmp_path / "run",
            resume=True,
            **options,
        )
