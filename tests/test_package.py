"""What is published: the wheel, the source archive and their metadata."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml

import covey

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The wheel and the source archive, built from the lock without the network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_has_the_package_and_nothing_else(archives):
    with zipfile.ZipFile(archives[0]) as wheel:
        names = set(wheel.namelist())
        scripts = wheel.read(f"covey-{covey.__version__}.dist-info/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {
        "covey",
        f"covey-{covey.__version__}.dist-info",
    }
    assert not [name for name in names if re.search(r"(^|/)(tests|reproductions|docs)/", name)]
    assert {"covey/py.typed", "covey/datasets/files/heart_disease.csv"} <= names
    modules = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/**/*.py")}
    assert modules <= names
    assert "covey = covey.cli:main" in scripts


def test_the_source_archive_can_be_tested_and_built(archives):
    with tarfile.open(archives[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    needed = {"LICENSE", "README.md", "CITATION.cff", "pyproject.toml", "mkdocs.yml"}
    needed |= {
        "src/covey/__init__.py",
        "tests/conftest.py",
        "docs/index.md",
        "examples/scaffold.py",
    }
    assert needed <= names
    first = {name.partition("/")[0] for name in names}
    assert not first & {".venv", ".cache", ".git", "site", "runs", "dist", "build"}


def test_the_metadata_say_what_is_supported(archives):
    with zipfile.ZipFile(archives[0]) as wheel:
        text = wheel.read(f"covey-{covey.__version__}.dist-info/METADATA").decode()
    found = message_from_string(text)
    classifiers = found.get_all("Classifier")
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
    assert "Typing :: Typed" in classifiers
    assert found["License-Expression"] == "Apache-2.0"
    extras = set(found.get_all("Provides-Extra"))
    assert extras == {
        *("all", "cluster", "datasets", "deploy", "flax", "mlflow", "numpyro", "privacy"),
        "topology",
    }


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]
