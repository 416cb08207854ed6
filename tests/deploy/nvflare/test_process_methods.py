"""Methods of every kind over NVIDIA FLARE: the rounds are those of sites in one process."""

import json
import shutil

import jax
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

from covey.cli.deploying import order_of
from covey.core import wire
from covey.deploy.nvflare import coordinate
from covey.deploy.server import conduct
from covey.deploy.site import open_handler
from covey.deploy.study import of_tables
from covey.engines.transport import MemoryTransport
from covey.runs import checkpoint
from process_federation import SITES, bounded

pytestmark = pytest.mark.slow
COLUMNS = {"features": ["age", "dose"], "outcome": "gain", "standardise": True}
STUDIES = {
    "fedpop": {
        "model": {"name": "mixed_linear"},
        "method": {"name": "fedpop", "step_size": 0.1, "draws": 5},
    },
    "fedem": {
        "model": {"name": "gaussian_mixture", "components": 2},
        "method": {"name": "fedem"},
        "channel": {"name": "dithering", "levels": 16},
    },
    "fald": {
        "model": {"name": "linear"},
        "method": {"name": "fald", "step_size": 0.001, "local_steps": 2, "burn_in": 1},
    },
}
COUNTS = ["round", "clients", "lost", "diverged", "bits_up", "bits_down"]


def metrics_of(run) -> pd.DataFrame:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return pd.DataFrame([json.loads(line) for line in lines])


@pytest.mark.filterwarnings("ignore")  # five rounds are too few for any of them
@pytest.mark.parametrize("name", STUDIES)
def test_rounds_are_those_of_sites_in_one_process(name, federation, tmp_path):
    study = of_tables(name, {"columns": COLUMNS, **STUDIES[name], "run": {"rounds": 5, "seed": 3}})
    with federation.coordinator() as coordinator:
        order = order_of(study, SITES, quorum=None, deadline=120.0, wait=60.0)
        outcome = coordinate.run(coordinator, order, show=bounded(), say=lambda text: None)
    assert outcome.how == "done", outcome

    for site in SITES:
        shutil.copytree(
            federation.folder / "owners" / site,
            tmp_path / site,
            ignore=shutil.ignore_patterns("covey-site"),
        )
    handlers = {site: open_handler(tmp_path / site / "site.toml") for site in SITES}
    run = conduct(study, MemoryTransport(handlers), tmp_path / "run", sites=SITES, progress=False)
    folder = federation.folder / "runs" / name
    found, expected = metrics_of(folder), metrics_of(tmp_path / "run")
    assert list(found["round"]) == [1, 2, 3, 4, 5]
    pd.testing.assert_frame_equal(found[COUNTS], expected[COUNTS])
    stored = checkpoint.newest(folder / "checkpoints", at_most=5)
    mine = wire.unpack(stored.body, run._engine.snapshot_like()).server
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
