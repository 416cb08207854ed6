import pytest


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server and three sites that are running and connected."""
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")
    from process_federation import SITES, Federation, until

    with Federation(tmp_path_factory.mktemp("federation")) as federation:
        for name in ("server", *SITES):
            federation.start(name)
        with federation.coordinator() as coordinator:
            until(lambda: set(coordinator.sites()) == set(SITES), "sites to connect")
        yield federation
