"""A page in a browser: it draws, asks nothing of a network, and is accessible."""

import os
import shutil
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest

from covey.report import page
from covey.report.serving import server_of
from run_files import hold, write

pytestmark = pytest.mark.processes  # of a browser

CHROMIUM = Path("/usr/bin/chromium")
AXE = "axe-core@4.14.0"  # of Deque Systems, under the Mozilla Public License 2.0; not kept here
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# Counts how often a page comes to where it looks for news, paused or not.
COUNT_LOOKS = """
window.looks = 0;
const every = window.setInterval.bind(window);
window.setInterval = (look, pause) => every(() => { look(); window.looks += 1; }, pause);
"""


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> str:
    """The script of axe-core, from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm to fetch axe-core with")
    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(
        [npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"npm cannot fetch {AXE}: {packed.stderr.strip()[:200]}")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        content = archive.extractfile("package/axe.min.js")
        assert content is not None
        return content.read().decode()


@pytest.fixture(scope="module")
def address(full, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.write(full, path)
    return path.as_uri()


@pytest.fixture(scope="module", params=[(1200, "light"), (400, "dark")], ids=["desk", "phone"])
def opened(request, browser, address):
    """The page, with what it has said and asked for."""
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=False
    )
    tab = context.new_page()
    tab.said, tab.asked = [], []
    tab.on("console", lambda message: tab.said.append(message.text))
    tab.on("pageerror", lambda error: tab.said.append(str(error)))

    def route(one):
        tab.asked.append(one.request.url)
        one.continue_()

    tab.route("**/*", route)
    tab.goto(address)
    tab.wait_for_function(
        "document.querySelectorAll('.plot').length == "
        "document.querySelectorAll('.js-plotly-plot .main-svg:first-child').length",
        timeout=120_000,  # of a machine with other work
    )
    yield tab
    context.close()


def test_all_plots_are_drawn_without_a_request(opened, address):
    plots = opened.query_selector_all(".js-plotly-plot")
    assert len(plots) == 9
    for plot in plots:
        box = plot.query_selector("svg.main-svg").bounding_box()
        assert box["width"] > 250
        assert box["height"] > 100
    assert opened.query_selector_all(".js-plotly-plot path, .js-plotly-plot .point")
    assert opened.said == []
    assert [asked for asked in opened.asked if asked != address] == []


def test_nothing_sticks_out_of_the_page(opened):
    wide, here = opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= here


def test_the_button_changes_the_page_and_its_figures(opened):
    text = "document.querySelector('.js-plotly-plot').layout.font.color"
    before = opened.evaluate(text), opened.evaluate("getComputedStyle(document.body).color")
    opened.keyboard.press("Tab")  # past the link to the results
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.id") == "theme"
    outline = opened.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"
    opened.keyboard.press("Enter")
    after = opened.evaluate(text), opened.evaluate("getComputedStyle(document.body).color")
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.slow
def test_axe_finds_nothing_serious(opened, axe):
    opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    opened.evaluate(axe)
    found = opened.evaluate("axe.run(document)")
    assert len(found["passes"]) > 20
    serious = [
        (one["id"], one["help"], [node["html"][:200] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_a_table_can_be_downloaded(opened):
    with opened.expect_download() as started:
        opened.click("a[download='shared.csv']")
    text = Path(started.value.path()).read_text("utf-8")
    assert text.startswith("term,unit,odds ratio")
    assert text.count("\n") == 5


@pytest.mark.slow
def test_a_served_page_follows_its_run(browser, tmp_path):
    """It reloads after another round, waits while it is paused, and ends with the run."""
    write(tmp_path, 4)
    hold(tmp_path, os.getpid())
    with server_of(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        context = browser.new_context()
        tab = context.new_page()
        said = []
        tab.on("console", lambda message: said.append(message.text))
        tab.add_init_script(COUNT_LOOKS)
        tab.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        assert tab.get_attribute("body", "data-live") == "4-running"
        write(tmp_path, 5)
        tab.wait_for_selector("body[data-live='5-running']", timeout=120_000)
        tab.click("#pause")
        assert tab.get_attribute("#pause", "aria-pressed") == "true"
        write(tmp_path, 6)
        looks = tab.evaluate("window.looks")
        end = time.monotonic() + 120
        while tab.evaluate("window.looks") <= looks + 1:  # the page's policy permits no eval
            assert time.monotonic() < end, "the page does not look at its run"
            tab.wait_for_timeout(100)
        assert tab.get_attribute("body", "data-live") == "5-running"
        tab.click("#pause")
        (tmp_path / "lock").write_text("")
        tab.wait_for_selector("body:not([data-live])", timeout=120_000)
        assert said == []
        context.close()
        server.shutdown()
        thread.join()
