"""What a coordinator may choose before the first round: one design, of the formula, that fits."""

import numpy as np
import pytest

from coordinator import Coordinator
from coordinator import design_of as honest
from covey.core import outline
from covey.core.protocol import Kind
from covey.deploy import fit_design, fit_rows
from covey.deploy.audit import AuditLog
from covey.deploy.refusal import DeclinedError
from covey.deploy.site import open_handler
from covey.deploy.site_file import read
from covey.deploy.site_table import open_table
from covey.deploy.study import of_formula, of_tables
from site_folders import table_of, write_site

FORMULA = "ill ~ age + scale(dose) + sex + (1 | hospital)"
SITES = ["basel", "bern"]
RUN = {
    "columns": {"features": ["age", "dose"], "outcome": "gain", "test": 0.25, "standardise": True},
    "model": {"name": "linear"},
    "method": {"name": "fedavg"},
    "run": {"rounds": 2, "seed": 1},
}


@pytest.fixture
def sites(tmp_path):
    table = table_of(1)
    table.loc[:5, "dose"] = None
    return {
        name: write_site(tmp_path / name, name, table if name == "bern" else table_of(seed))
        for seed, name in enumerate(SITES)
    }


def design_of(sites, study):
    opened = [read(path) for path in sites.values()]
    return honest(study, [fit_rows.described(one, study, open_table(one)) for one in opened])


def own_design(sites, study, content):
    site = read(sites["bern"])
    return fit_rows.own_design(site, study, open_table(site), content)


WRONG = [
    ({"text": "ill ~ age + (1 | hospital)"}, "not that of the study's formula"),
    ({"missing": "impute"}, "not that of the study's formula"),
    ({"group": "ward"}, "no group 'ward'"),
    ({"client": "ward"}, "does not call the sites 'ward'"),
    ({"kinds": {}}, "other columns"),
    ({"kinds.name": "text"}, "other columns"),
    ({"kinds.age": "text"}, "'age' has a number"),
    ({"rows": {"bern": 3}}, "counts of sites"),
    ({"factors": {}}, "factors are not those"),
    ({"factors.age": [61.0, 62.0]}, "factors are not those"),  # would choose rows by age
    ({"factors.sex": ["f", "x"]}, "lack one that this site has named"),  # would leave rows out
    ({"factors.sex": ["f", "m", "m"]}, "not two or more different ones"),
    ({"factors.sex": ["f", "m", *[str(one) for one in range(2500)]]}, "more than 2000 columns"),
    ({"outcome_levels": ["no", "maybe"]}, "levels of the outcome"),
    ({"outcome_levels": None}, "Bernoulli outcome has two levels"),
    ({"family": "poisson", "outcome_levels": None}, "family is not 'poisson'"),
    ({"scaled": {}}, "scales other terms"),
    ({"scaled.scale(dose)": [0.0, None]}, "the scale of 'scale.dose.' is none"),
    ({"scaled.scale(dose)": [0.0, 0.0]}, "the scale of 'scale.dose.' is none"),
    ({"fills.dose": 1e6}, "fills other columns"),
    ({"indicators": ["dose"]}, "marks missing values"),
    ({"columns": ["age"]}, "its columns are not those"),
    ({"columns": [f"x{at}" for at in range(4000)]}, "its columns are not those"),
    ({"slopes": ["age"]}, "its columns are not those"),
    ({"intercept": False}, "its columns are not those"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=lambda one: str(one)[:50])
def test_a_design_that_does_not_fit_the_study_and_the_site_is_refused(sites, change, words):
    study = of_formula("a", FORMULA)
    content = design_of(sites, study)
    assert own_design(sites, study, content).columns == ("age", "scale(dose)", "sex[T.m]")
    for key, value in change.items():
        name, _, entry = key.partition(".")
        content[name] = content[name] | {entry: value} if entry else value
    with pytest.raises(DeclinedError, match=words):
        own_design(sites, study, content)


@pytest.mark.parametrize("content", [{}, {"text": FORMULA}, [], None])
def test_what_is_no_design_is_refused(sites, content):
    with pytest.raises(DeclinedError, match="cannot be read"):
        own_design(sites, of_formula("a", FORMULA), content)


@pytest.mark.parametrize(
    ("fills", "words"),
    [
        ({"age": "x", "dose": 0.1, "sex": "f"}, "'age' cannot become 'x'"),
        ({"age": 60.0, "dose": 0.1, "sex": "q"}, "'sex' cannot become 'q'"),
        ({"age": 60.0}, "fills other columns"),
    ],
)
def test_missing_values_become_what_they_can(sites, fills, words):
    study = of_formula("a", FORMULA, missing="indicator")
    content = design_of(sites, study)
    assert own_design(sites, study, content).indicators == ("dose",)
    with pytest.raises(DeclinedError, match=words):
        own_design(sites, study, content | {"fills": fills})


def test_interactions_of_many_levels_are_refused_before_their_columns_are_made(sites, monkeypatch):
    study = of_formula("a", "ill ~ sex * ward + (1 | hospital)")
    content = design_of(sites, study)
    own_design(sites, study, content)
    more = [f"level {at}" for at in range(60)]
    content["factors"] = {name: [*given, *more] for name, given in content["factors"].items()}
    monkeypatch.delattr(fit_design, "with_columns")
    with pytest.raises(DeclinedError, match="more than 2000 columns"):
        own_design(sites, study, content)


@pytest.fixture
def bern(sites):
    with open_handler(sites["bern"]) as handler:
        yield handler


def test_sums_are_told_of_one_design(sites, bern):
    """Two designs, one level apart, could differ by the row that has it."""
    study = of_formula("a", FORMULA)
    server, content = Coordinator(bern, study, "bern", SITES), design_of(sites, study)
    other = content | {"factors": {"sex": ["f", "m", "x"]}}
    other |= {"columns": ["age", "scale(dose)", "sex[T.m]", "sex[T.x]"]}
    own_design(sites, study, other)  # nothing is wrong with it by itself
    server.describe()
    first = server.step("agree", content)
    assert first == server.step("agree", content)
    assert "another design" in server.step("agree", other)
    for name in ("the first server", "another server"):  # nor by greeting the site anew
        server.server = name
        server.describe()
        assert "another design" in server.step("agree", other)
        assert server.step("agree", content) == first


def test_the_table_is_that_of_the_first_sums(sites, bern):
    study = of_formula("a", FORMULA)
    server = Coordinator(bern, study, "bern", SITES)
    server.describe()
    server.step("agree", design_of(sites, study))
    table_of(7).to_csv(sites["bern"].parent / "table.csv", index=False)
    assert "the table of 'bern' has changed" in server.describe()


def test_a_site_keeps_its_index_which_splits_are_drawn_with(bern):
    """Sums over the training rows of many splits could be solved for the rows."""
    server = Coordinator(bern, of_tables("a", RUN), "bern", SITES)
    first = server.describe()
    assert server.describe() == first
    assert "another index" in server.describe(["bern", "chur"])
    assert "not for bern" in server.describe(["basel", "bern", "bern"])


SCALING = {"mean": [60.0, 0.0], "scale": [10.0, 1.0]}


def test_rows_are_told_on_one_scale(bern):
    server = Coordinator(bern, of_tables("a", RUN), "bern", SITES)
    server.describe()
    assert "does not fit" in server.step("agree", SCALING | {"scale": [10.0, 0.0]})
    server.step("agree", SCALING)
    assert "another design" in server.step("agree", SCALING | {"scale": [10.0, 2.0]})


@pytest.mark.parametrize(
    "change", [{"clients": 3}, {"clients": 0}, {"capacity": 2**40}, {"capacity": 16}]
)
def test_sizes_that_a_server_says_are_bounded(bern, change):
    server = Coordinator(bern, of_tables("a", RUN), "bern", SITES)
    server.describe()
    spec = server.step("agree", SCALING)["entry"]["spec"]
    good = spec | {"clients": 2, "examples": 90, "capacity": 48}
    said = server.step("start", {"spec": good | change, "shared": None})
    assert "does not fit the rows" in said
    assert server.step("start", {"spec": good, "shared": None}) == {"ready": True}


@pytest.mark.parametrize("size", [1, 4])
def test_batches_of_a_few_rows_are_refused(bern, size):
    """A round of one step on a batch of one row would send the gradient of that row."""
    method = {"name": "fedavg", "batch_size": size, "steps": 1}
    server = Coordinator(bern, of_tables("a", {**RUN, "method": method}), "bern", SITES)
    assert f"batch_size is {size}, and bern computes nothing of fewer than 5" in server.describe()
    larger = of_tables("b", {**RUN, "method": {**method, "batch_size": 5}})
    assert Coordinator(bern, larger, "bern", SITES).describe()["site"] == "bern"


def test_an_end_that_does_not_fit_the_study_is_refused_and_the_site_goes_on(bern, sites):
    """What is published may be any tree: the site finds out when it uses it."""
    server = Coordinator(bern, of_tables("a", RUN), "bern", SITES)
    server.describe()
    spec = server.step("agree", SCALING)["entry"]["spec"]
    spec |= {"clients": 2, "examples": 90, "capacity": 48}
    server.step("start", {"spec": spec, "shared": None})
    for published in ({"x": np.zeros(3)}, np.zeros((2, 2)), [None]):
        server.send(Kind.STOP, outline.pack(published))
        assert "bern cannot use the result of the study" in server.step("result", None)
    log = AuditLog(sites["bern"].parent / "covey-site" / "audit.jsonl")
    assert list(log.lines())[-1]["reason"] == "message"
