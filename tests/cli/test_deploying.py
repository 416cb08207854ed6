"""Mistakes with `covey deploy`, told in one line."""

import importlib.util
import socket

import pytest
from typer.testing import CliRunner

from covey.cli import app


def run(*words):
    found = CliRunner().invoke(app, ["deploy", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


def test_without_nvflare_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, text = run("init", "--sites", "a,b", "--out", tmp_path)
    assert code == 2
    assert text == "`covey deploy` needs NVFlare: pip install 'covey[deploy]'"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")
    folder = tmp_path_factory.mktemp("kits")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code, text = run("init", "--sites", "a, b", "--out", folder, "--port", port)
    assert code == 0, text
    assert f"new: {folder}/sites/b" in text
    assert "authority can sign new kits" in text
    return folder, port


def test_kits_that_are_there_are_left_alone(kits):
    folder, port = kits
    code, text = run("init", "--sites", "a,b", "--out", folder, "--port", port)
    assert code == 0
    assert "all kits are there already" in text


def test_a_server_without_a_kit_and_with_another_kit(kits, tmp_path):
    folder, _ = kits
    assert run("server", tmp_path / "none")[1].endswith(
        "there is no kit; `covey deploy init --sites a,b` makes kits"
    )
    code, text = run("server", folder / "coordinator", "--out", tmp_path)
    assert code == 2
    assert "this is the kit of a coordinator; the kit of a server is needed" in text


def test_a_port_in_use_is_told_before_anything_starts(kits, tmp_path):
    folder, port = kits
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        code, text = run("server", folder / "server", "--out", tmp_path)
    assert code == 2
    assert f"port {port} is in use by another program" in text


def test_a_server_that_does_not_answer(kits):
    folder, port = kits
    for command in (["status"], ["stop", "x"], ["resume", "x"]):
        code, text = run(*command, "--kit", folder / "coordinator")
        assert code == 2
        assert f"nothing answers at localhost:{port}: is `covey deploy server` running" in text


def test_a_site_file_of_another_site_than_the_kit(kits, tmp_path):
    folder, _ = kits
    (tmp_path / "table.csv").write_text("age,ill\n1,0\n")
    (tmp_path / "site.toml").write_text(
        '[site]\nname = "b"\n[data]\ntable = "table.csv"\ncolumns = ["age"]\noutcome = ["ill"]\n'
        '[studies]\nmethods = ["marginal"]\n[privacy]\nbudget = "none"\n'
    )
    code, text = run("site", tmp_path / "site.toml", "--kit", folder / "sites" / "a")
    assert code == 2
    assert "is the file of site 'b', and" in text


def test_the_demonstration_removes_its_own_folder_and_no_other(tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

    def stops(out):
        raise ValueError(f"the folder has {len(list(out.iterdir()))} file")

    monkeypatch.setattr("covey.cli.deploy_demo.write_hospitals", stops)
    thesis = tmp_path / "home" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("three years")
    (tmp_path / "link").symlink_to(thesis.parent)
    for folder, words in (
        (thesis.parent, "not of an earlier demonstration: nothing was changed"),
        (tmp_path / "link", "not of an earlier demonstration"),
        (thesis, "is a file"),
    ):
        code, text = run("demo", "--out", folder)
        assert code == 2
        assert words in text
    assert thesis.read_text() == "three years"
    new = tmp_path / "new"
    for _ in range(2):
        assert "the folder has 1 file" in run("demo", "--out", new)[1]
        (new / "kits").mkdir()


def test_kits_are_not_made_among_other_files(kits, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    code, text = run("init", "--sites", "a", "--out", tmp_path)
    assert code == 2
    assert "is not empty and holds no kits" in text
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    code, text = run("init", "--sites", "a", "--out", tmp_path / "notes.txt")
    assert code == 2
    assert "is a file" in text
    folder, port = kits
    (folder / "authority").rename(tmp_path / "authority")
    code, text = run("init", "--sites", "a,c", "--out", folder, "--port", port)
    (tmp_path / "authority").rename(folder / "authority")
    assert code == 2
    assert "has kits but no authority/" in text
    assert not (folder / "sites" / "c").exists()
