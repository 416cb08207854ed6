"""Kits as they are made and read: names, certificates, rules."""

import json
import stat

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

from certificates import reissue

from covey.deploy.nvflare import rules
from covey.deploy.nvflare.kit import read_kit
from covey.deploy.nvflare.provision import make_kits


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    make_kits(folder, ["north", "south"], host="localhost", port=18002)
    return folder


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_kit_says_whose_it_is_and_where_its_server_is(kits):
    site = read_kit(kits / "sites" / "north", "site")
    assert (site.kind, site.name, site.address) == ("site", "north", "localhost:18002")
    assert read_kit(kits / "server", "server").name == "localhost"
    assert read_kit(kits / "coordinator", "coordinator").port == 18002


def test_private_keys_are_their_owners(kits):
    for place in ("server", "sites/north", "coordinator", "authority"):
        assert permissions(kits / place) == 0o700
    for key in [*kits.glob("*/startup/*.key"), *kits.glob("authority/covey/state/*")]:
        assert permissions(key) == 0o600
    assert not [path for path in kits.glob("[!a]*/**/*") if "root_pri_key" in path.name]


def test_sites_that_join_later_get_kits_and_the_others_keep_theirs(tmp_path):
    make_kits(tmp_path, ["a"], host="localhost", port=18002)
    before = (tmp_path / "sites/a/startup/client.crt").read_bytes()
    new = make_kits(tmp_path, ["a", "b"], host="localhost", port=18002)
    assert [kit.name for kit in new] == ["b"]
    assert (tmp_path / "sites/a/startup/client.crt").read_bytes() == before
    roots = {path.read_bytes() for path in tmp_path.glob("**/rootCA.pem")}
    assert len(roots) == 1
    with pytest.raises(ValueError, match="kits for the server localhost:18002, not localhost:9"):
        make_kits(tmp_path, ["c"], host="localhost", port=9)


@pytest.mark.parametrize("name", ["", "server", "Coordinator", "a b", "a/b", "-a", "x" * 64])
def test_names_that_are_not_allowed(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be the name of a site"):
        make_kits(tmp_path, ["good", name], host="localhost", port=18002)
    assert not list(tmp_path.iterdir())


def test_other_arguments_that_are_not_allowed(tmp_path):
    with pytest.raises(ValueError, match="no sites"):
        make_kits(tmp_path, [], host="localhost", port=18002)
    with pytest.raises(ValueError, match="named twice: a"):
        make_kits(tmp_path, ["a", "b", "a"], host="localhost", port=18002)
    with pytest.raises(ValueError, match="not a host name"):
        make_kits(tmp_path, ["a"], host="two words", port=18002)
    with pytest.raises(ValueError, match="port 70000"):
        make_kits(tmp_path, ["a"], host="localhost", port=70000)


def test_a_site_allows_one_executor_no_code_and_nothing_else_to_the_coordinator(kits):
    local = kits / "sites" / "north" / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [rules.EXECUTOR, rules.CAP]
    rights = json.loads((local / "authorization.json").read_text())["permissions"]
    assert list(rights) == [rules.COORDINATOR_ROLE]
    lead = rights[rules.COORDINATOR_ROLE]
    assert {lead[one] for one in ("byoc", "operate", "shell_commands", "download_job")} == {"none"}
    assert not [path for path in local.iterdir() if path.suffix in (".default", ".sample")]


def test_a_server_keeps_its_jobs_in_its_kit_wherever_that_is(kits, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "local").mkdir()
    rules.server_resources(moved)
    text = (moved / "local" / "resources.json").read_text()
    assert json.loads(text)["class_allow_list"] == [rules.CONTROLLER]
    assert str(moved / "jobs") in text
    assert "/tmp/nvflare" not in text
    rules.allow(moved, "x.Y")
    rules.server_resources(moved)
    assert json.loads((moved / "local" / "resources.json").read_text())["class_allow_list"] == [
        rules.CONTROLLER,
        "x.Y",
    ]


def test_a_missing_kit_and_one_of_another_kind_are_named(kits):
    with pytest.raises(ValueError, match="there is no kit"):
        read_kit(kits / "nowhere", "site")
    with pytest.raises(ValueError, match="kit of a server; the kit of a site is needed"):
        read_kit(kits / "server", "site")
    with pytest.raises(ValueError, match=r"did you mean .*sites/north\?"):
        read_kit(kits, "site")


def test_a_certificate_out_of_its_time_or_of_another_authority_is_refused(tmp_path):
    make_kits(tmp_path, ["a", "b", "c"], host="localhost", port=18002)
    make_kits(tmp_path / "other", ["c"], host="localhost", port=18002)
    sites, authority = tmp_path / "sites", tmp_path / "authority"
    reissue(sites / "a", authority, -10, -1)
    with pytest.raises(ValueError, match="certificate expired on"):
        read_kit(sites / "a", "site")
    reissue(sites / "b", authority, 1, 10)
    with pytest.raises(ValueError, match="is the clock right"):
        read_kit(sites / "b", "site")
    foreign = tmp_path / "other" / "sites" / "c" / "startup" / "client.crt"
    (sites / "c" / "startup" / "client.crt").write_bytes(foreign.read_bytes())
    with pytest.raises(ValueError, match="not signed by the authority"):
        read_kit(sites / "c", "site")
    (sites / "c" / "startup" / "client.crt").write_text("no certificate")
    with pytest.raises(ValueError, match="cannot be read"):
        read_kit(sites / "c", "site")
