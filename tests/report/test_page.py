"""The page of a report: it is whole, its numbers are those of the tables, everyone can read it."""

import re
from importlib.resources import files

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from covey.report import page
from covey.report.content import Content, Settings
from covey.report.sections import sections_of
from html_pages import Reader, check_tables

TITLES = [
    "Summary",
    "Shared effects",
    "Sites",
    "A new site",
    "Predictive calibration",
    "Residuals",
    "Posterior draws",
    "Messages of the sites",
    "Privacy budget",
    "Fairness across sites",
    "Convergence over rounds",
    "Settings",
    "Tables to download",
]


@pytest.fixture(scope="module")
def text(full):
    return page.render(full)


@pytest.fixture(scope="module")
def read(text):
    return Reader(text)


def test_every_number_of_the_page_is_that_of_its_table(read, full):
    check_tables(read, sections_of(full))


def test_sections_are_in_the_order_of_reading(read):
    assert [title for level, title in read.headings if level == 2] == TITLES
    levels = [level for level, _ in read.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) == 1


def test_what_a_report_has_nothing_for_is_left_out():
    settings = Settings(pd.DataFrame({"setting": ["seed"], "value": ["0"]}))
    text = page.render(Content("Empty", settings=settings))
    assert [title for _, title in Reader(text).headings] == ["Empty", "Settings", TITLES[-1]]
    assert len(text) < 50_000  # no figure, no Plotly


def test_a_page_is_small_and_needs_nothing_from_outside(text, read):
    assert len(text.encode()) < 6e6
    assert text.count("Plotly.js (plotly.js") <= 1
    assert text.count("plotly.js v") == 1
    for tag, attributes in read.elements:
        for name in ("src", "href", "action", "data", "srcset"):
            address = attributes.get(name) or ""
            assert address.startswith(("#", "data:")) or not address, (tag, address)
    assert not re.search(r"@import|url\(", text.partition("</style>")[0])
    policy = next(
        attributes["content"]
        for tag, attributes in read.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")


def test_names_are_escaped(text):
    body = text.partition("</style>")[2]
    assert "<b>Bern" not in body.partition("<script>")[0]
    assert "&lt;b&gt;Bern&lt;/b&gt;" in body
    assert "name = &#34;&lt;script&gt;&#34;" in body
    assert "Heart &lt;disease&gt;" in body


def test_every_plot_has_words_and_a_figure(read, full):
    plots = [plot for section in sections_of(full) for plot in section.plots]
    drawn = [of for tag, of in read.elements if tag == "div" and of.get("class") == "plot"]
    assert [of["aria-label"] for of in drawn] == [plot.alt for plot in plots]
    assert all(of["role"] == "img" for of in drawn)
    sources = [of["data-for"] for tag, of in read.elements if "data-for" in of]
    assert sources == [of["id"] for of in drawn]
    assert len(set(sources)) == len(plots) == 9


def test_the_page_has_landmarks_and_a_way_past_them(read):
    tags = [tag for tag, _ in read.elements]
    for landmark in ("header", "nav", "main", "footer"):
        assert tags.count(landmark) == 1
    assert ("html", {"lang": "en"}) in read.elements
    ids = [of["id"] for _, of in read.elements if "id" in of]
    assert len(ids) == len(set(ids))
    targets = [str(of["href"])[1:] for tag, of in read.elements if tag == "a" and "href" in of]
    assert {target for target in targets if not target.startswith("ata:")} <= set(ids)
    regions = [of for tag, of in read.elements if of.get("class") == "scroll"]
    assert all(of["tabindex"] == "0" and of["aria-label"] for of in regions)


def test_a_page_of_figures_has_their_titles_as_headings(tmp_path):
    figure = go.Figure(go.Bar(y=[1, 2])).update_layout(title="Two bars")
    page.write_page(tmp_path / "figures.html", "Figures", [figure])
    text = (tmp_path / "figures.html").read_text("utf-8")
    assert Reader(text).headings == [(1, "Figures"), (2, "Two bars")]
    assert figure.layout.title.text == "Two bars"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (-12345.678, "-12350"),
        (3.0, "3"),
        (24768, "24768"),
        (1.5e-7, "1.500e-07"),
        (float("nan"), ""),
        ("a", "a"),
        (None, ""),
    ],
)
def test_cells(value, text):
    assert page.cells(pd.DataFrame({"a": [value]}, dtype=object))[0][0].text == text


def test_the_template_is_part_of_the_package():
    names = {path.name for path in files("covey.report").joinpath("template").iterdir()}
    assert names == {"page.html", "blocks.html", "style.css", "page.js"}
