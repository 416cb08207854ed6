"""A process that stands by: it runs one command, and ends with the process that started it."""

import json
import os
import signal
from pathlib import Path

import pytest

from covey.deploy.nvflare.standby import Standby

STUDY = """
import json, os, sys
told = [__name__, sys.argv[1:], os.environ["TOKEN"], sys.stdin.read(), "colorsys" in sys.modules]
with open(sys.argv[1], "w") as file:
    json.dump(told, file)
sys.exit(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_study.py").write_text(STUDY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_study"


def test_it_runs_one_command_with_its_imports_done(tmp_path: Path, module: str):
    answer = str(tmp_path / "answer.json")
    process = Standby(["colorsys"]).run(module, [answer, "two words"], {"TOKEN": "a secret"})
    assert process is not None
    assert process.wait(60) == 3
    told = json.loads(Path(answer).read_text())
    assert told == ["__main__", [answer, "two words"], "a secret", "", True]


def test_the_command_has_a_process_group_of_its_own(module: str):
    with Standby([])._process as process:
        assert os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_it_ends_without_a_command_when_its_parent_is_gone(tmp_path: Path, module: str):
    process = Standby([])._process
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does when the parent dies
    assert process.wait(60) == 0
    assert not (tmp_path / "answer.json").exists()


def test_a_process_that_has_ended_is_told(module: str):
    standby = Standby([])
    standby._process.kill()
    standby._process.wait(60)
    assert standby.run(module, [], {}) is None
