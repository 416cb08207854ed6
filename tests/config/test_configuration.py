"""Configurations: what they build, and one clear line for each mistake."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from covey.config import configuration
from covey.config.catalogue import CHANNELS, COHORTS, DATA, METHODS, MODELS, TOPOLOGIES, described
from covey.config.configuration import ConfigurationError
from covey.config.options import named, options_of
from covey.core.faults import Faults

EXAMPLES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


def tables(**changes: object) -> dict:
    """A correct configuration, with some keys ("table__key") changed."""
    result: dict = {
        "data": {"name": "heart_disease", "validation": 0.2, "test": 0.2, "standardise": True},
        "model": {"name": "logistic"},
        "method": {"name": "fedavg", "client_optimizer": {"name": "sgd", "learning_rate": 0.1}},
        "run": {"rounds": 5, "seed": 1},
    }
    for path, value in changes.items():
        table, _, key = path.partition("__")
        if key:
            result.setdefault(table, {})[key] = value
        else:
            result[table] = value
    return result


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"method__bach_size": 8},
            "method.bach_size: unknown key 'bach_size'; did you mean 'batch_size'?",
        ),
        (
            {"run__evaluate_evry": 8},
            "run.evaluate_evry: unknown key 'evaluate_evry'; did you mean 'evaluate_every'?",
        ),
        ({"faults__droput": 0.1}, "faults.droput: unknown key 'droput'; did you mean 'dropout'?"),
        ({"methd__name": "fedavg"}, "[methd]: unknown table 'methd'; did you mean 'method'?"),
        (
            {"method__name": "fedavgg"},
            "method.name: unknown method 'fedavgg'; did you mean 'fedavg'?",
        ),
        ({"model__name": "logit"}, "model.name: unknown model 'logit'; did you mean 'logistic'?"),
        (
            {"data__name": "hart_disease"},
            "data.name: unknown data 'hart_disease'; did you mean 'heart_disease'?",
        ),
        ({"method__name": "zzz"}, "method.name: unknown method 'zzz' (known: em, "),
        ({"model": {}}, "model.name: needs one of linear, logistic"),
        ({"model": {"name": 3}}, "model.name: needs one of linear, logistic"),
        ({"model": 3}, "model: a table is needed, got 3"),
        (
            {"method__batch_size": "large"},
            "method.batch_size: input should be a valid integer, got 'large'",
        ),
        (
            {"method__batch_size": "8"},
            "method.batch_size: input should be a valid integer, got '8'",
        ),
        (
            {"method__batch_size": True},
            "method.batch_size: input should be a valid integer, got True",
        ),
        ({"method__batch_size": 8.5}, "method.batch_size: input should be a valid integer"),
        (
            {"method__weighting": "equl"},
            "method.weighting: input should be 'rows' or 'equal', got 'equl'",
        ),
        ({"run__rounds": "many"}, "run.rounds: input should be a valid integer, got 'many'"),
        (
            {"run__engine": "loops"},
            "run.engine: input should be 'simulate', 'loop', 'peers' or 'ray', got 'loops'",
        ),
        (
            {"topology": {"name": "ring"}},
            'topology: is for peers without a server; set run.engine = "peers", or leave it out',
        ),
        (
            {"run__engine": "peers", "topology": {"name": "rng"}},
            "topology.name: unknown topology 'rng'; did you mean 'ring'?",
        ),
        (
            {"run__engine": "peers", "topology": {"name": "ring", "weights": "fast"}},
            "topology.weights: input should be 'metropolis' or 'fastest', got 'fast'",
        ),
        ({"method__name": "fedprox"}, "method.proximal is missing (a number)"),
        ({"cohort": {"name": "uniform"}}, "cohort.size is missing (a whole number)"),
        ({"data__hold_out": "va"}, "data.hold_out: input should be a valid"),
        (
            {"method__client_optimizer": "sgd"},
            "method.client_optimizer: sgd needs more than its name",
        ),
        (
            {"method__client_optimizer": {"name": "sdg"}},
            "method.client_optimizer: unknown optimiser 'sdg'; did you mean 'sgd'?",
        ),
        (
            {"method__client_optimizer": 0.1},
            "method.client_optimizer: an optimiser is a table such as",
        ),
        ({"channel": {"name": "dithering"}}, "channel.levels is missing (a whole number)"),
        (
            {"channel": {"name": "dithering", "levels": 7, "norm": 3}},
            "channel.norm: input should be 1, 2 or 'inf', got 3",
        ),
        (
            {"channel": {"name": "bfloat16", "part": 3}},
            "channel.part: input should be a valid string or",
        ),
        (
            {"channel": {"name": "clipping", "maximum": 1.0, "then": 3}},
            "channel.then: a channel is a table such as",
        ),
        (
            {"channel": {"name": "clipping", "maximum": 1.0, "then": {"name": "dithring"}}},
            "channel.then: unknown channel 'dithring'; did you mean 'dithering'?",
        ),
        (
            {"method__client_optimizer": {"name": "sgd", "learning_rate": 0.1, "momentm": 0.9}},
            "method.client_optimizer.momentm: unknown key 'momentm'; did you mean 'momentum'?",
        ),
        (
            {"method__client_optimizer": {"name": "adam", "learning_rate": "0.1"}},
            "method.client_optimizer.learning_rate: input should be a valid number, got '0.1'",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(change, line):
    with pytest.raises(ConfigurationError) as error:
        configuration.checked(tables(**change))
    (told,) = str(error.value).splitlines()
    assert told.startswith(line)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigurationError) as error:
        configuration.checked(tables(method__bach_size=8, run__rounds="x", model__name="logit"))
    assert len(str(error.value).splitlines()) == 3


def test_a_correct_configuration_builds_what_it_says(config):
    text = config.read_text() + "\n[channel]\nname = 'bfloat16'\n[faults]\ndropout = 0.25\n"
    config.write_text(text)
    read = configuration.read(config)
    parts = configuration.build(read)
    assert parts.method.name == "fedavg"
    assert parts.data.clients == 5
    assert parts.data.counts("validation").sum() == parts.data.counts("test").sum() == 40
    assert parts.cohort(parts.data.counts("train")).slots == 3
    assert parts.faults == Faults(dropout=0.25)
    assert parts.unseen is None
    assert read.options["run"] == {
        "rounds": 30,
        "seed": 5,
        "evaluate_every": 10,
        "checkpoint_every": 4,
    }


def test_resolved_tables_read_back_as_the_same_configuration(config):
    first = configuration.read(config)
    again = configuration.checked({**first.tables, "environment": {"jax": "0.0"}})
    assert again.tables == first.tables
    assert first.tables["method"]["epochs"] == 1  # a default of the factory
    assert first.tables["method"]["client_optimizer"] == {"name": "sgd", "learning_rate": 0.2}


def test_none_is_a_value_where_the_factory_takes_it():
    read = configuration.checked(tables(method__batch_size="none"))
    assert read.options["method"]["batch_size"] is None
    assert read.tables["method"]["batch_size"] == "none"
    with pytest.raises(
        ConfigurationError, match=r"method\.epochs: input should be a valid integer, got 'none'"
    ):
        configuration.checked(tables(method__epochs="none"))


def test_held_out_clients_share_the_scale_of_the_others():
    data = configuration.checked(tables(data__hold_out=["va"]))
    parts = configuration.build(data)
    assert parts.unseen is not None
    assert [parts.unseen.name_of(place) for place in range(parts.unseen.clients)] == ["va"]
    assert "va" not in {parts.data.name_of(place) for place in range(parts.data.clients)}
    trained = np.concatenate(
        [parts.data.shard(place, "train").rows.x for place in range(parts.data.clients)]
    )
    # Missing values become the mean, zero on the new scale, so the mean is zero and the spread at
    # most one.
    np.testing.assert_allclose(trained.mean(0), 0, atol=1e-5)
    assert np.all(trained.std(0) <= 1 + 1e-5)
    own = parts.unseen.shard(0, "train").rows.x
    assert (
        np.abs(own.mean(0)).max() > 0.1
    )  # another hospital: its own scale would have made this zero


def test_held_out_clients_need_test_rows():
    read = configuration.checked(tables(data__hold_out=["va"], data__test=0.0))
    with pytest.raises(ConfigurationError, match="no test rows"):
        configuration.build(read)


def test_the_split_follows_the_seed_unless_it_has_its_own():
    def rows(**changes):
        return configuration.build(
            configuration.checked(tables(data__standardise=True, **changes))
        ).data.rows.y

    assert not np.array_equal(rows(), rows(run__seed=2))
    assert np.array_equal(rows(data__split_seed=7), rows(data__split_seed=7, run__seed=2))


def test_training_rows_can_be_limited():
    options = {"data__train_rows": 50, "data__few_rows": 10, "data__few_share": 0.5}
    data = configuration.build(configuration.checked(tables(**options))).data
    assert sorted(data.counts("train")) == [10, 10, 50, 50]
    whole = configuration.build(configuration.checked(tables())).data
    assert np.array_equal(data.counts("test"), whole.counts("test"))
    with pytest.raises(ValueError, match="few_rows goes with a few_share"):
        configuration.build(configuration.checked(tables(data__few_share=0.5)))


def test_columns_are_chosen_kept_and_given_their_roles():
    """The columns of a table, those that are not scaled, and a model's offset, weights, groups."""
    model = {
        "name": "mixed_negative_binomial",
        "slopes": ["cp=4"],
        "offset": "sex",
        "weights": "age",
        "groups": "cp",
        "dispersion": 2.0,
    }
    changes = {
        "data__features": ["cp=4", "sex", "age", "cp", "cp=3"],
        "data__outcome": "num",
        "data__keep": ["sex", "age", "cp"],
        "data__client": "center",
        "model": model,
        "method": {"name": "fedpop", "step_size": 0.01},
    }
    read = configuration.checked(tables(**changes))
    assert read.tables["model"]["groups"] == "cp"
    parts = configuration.build(read)
    assert parts.data.spec.standardised == (0, 4)
    phi = parts.method.init(jax.random.key(0), parts.data.spec).theta.phi
    assert phi.columns.design == (0, 4)
    assert (phi.columns.offset, phi.columns.weights, phi.columns.groups) == (1, 2, 3)
    unscaled = {"data__standardise": False, "data__keep": ["age"]}
    with pytest.raises(ValueError, match=r"data\.keep is for data\.standardise = true"):
        configuration.build(configuration.checked(tables(**unscaled)))


@pytest.mark.parametrize(
    ("given", "personal"),
    [("output", "output"), (["hidden.0", "output"], ("hidden.0", "output")), ([], ())],
)
def test_a_configuration_names_the_personal_layers(given, personal):
    changes = {
        "model": {"name": "mixed_mlp", "hidden": [3, 2], "personal": given},
        "method": {"name": "fedrep"},
    }
    read = configuration.checked(tables(**changes))
    assert read.options["model"]["personal"] == personal
    assert configuration.checked(read.tables).tables == read.tables
    assert configuration.build(read).method.name == "fedrep"


@pytest.mark.parametrize(
    ("override", "table", "key", "value"),
    [
        ("method.batch_size=64", "method", "batch_size", 64),
        ("method.weighting=equal", "method", "weighting", "equal"),
        ("method.weighting = 'equal'", "method", "weighting", "equal"),
        ("data.hold_out=['site1']", "data", "hold_out", ["site1"]),
        ("faults.dropout=0.5", "faults", "dropout", 0.5),
        (
            "method.client_optimizer.learning_rate=0.9",
            "method",
            "client_optimizer",
            {"name": "sgd", "learning_rate": 0.9},
        ),
    ],
)
def test_overrides(config, override, table, key, value):
    assert configuration.read(config, overrides=[override]).tables[table][key] == value


def test_an_override_of_a_missing_key_is_told(config):
    with pytest.raises(ConfigurationError, match="did you mean 'batch_size'"):
        configuration.read(config, overrides=["method.bach_size=3"])
    for wrong in ("batch_size=3", "method.batch_size", "method.batch_size.x=3"):
        with pytest.raises(ConfigurationError, match="--set"):
            configuration.read(config, overrides=[wrong])


def test_a_model_that_the_method_cannot_use_is_told(config):
    with pytest.raises(
        ConfigurationError,
        match="fedavg cannot use the model 'mixed_logistic'; it needs one of linear, logistic",
    ):
        configuration.read(config, overrides=["model.name='mixed_logistic'"])


def test_the_seed_can_be_given_from_outside(config):
    assert configuration.read(config, seed=77).options["run"]["seed"] == 77


def test_a_file_that_is_not_toml_is_named(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[data\nname = 3")
    with pytest.raises(ValueError, match=r"broken\.toml is not valid TOML.*line 1"):
        configuration.read(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_correct(path):
    assert configuration.read(path).options["run"]["rounds"] >= 1


def test_the_examples_are_found():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(
    "named",
    [METHODS, MODELS, DATA, COHORTS, CHANNELS, TOPOLOGIES],
    ids=["methods", "models", "data", "cohorts", "channels", "topologies"],
)
def test_everything_named_has_readable_options_and_a_description(named):
    for name, factory in named.items():
        options_of(factory)
        assert described(named)[name], name
        if named is not DATA:  # a whole sentence, on one line
            assert described(named)[name].endswith("."), name


def test_optimisers_are_those_of_optax():
    built, errors = named(
        "here", optax.GradientTransformation, {"name": "sgd", "learning_rate": 0.5, "momentum": 0.9}
    )
    assert not errors
    assert built is not None
    expected = optax.sgd(0.5, momentum=0.9)
    parameters = jnp.ones(2)
    ours, theirs = built.init(parameters), expected.init(parameters)
    for slope in (jnp.asarray([1.0, 2.0]), jnp.asarray([-3.0, 0.5])):
        step, ours = built.update(slope, ours, parameters)
        expected_step, theirs = expected.update(slope, theirs, parameters)
        np.testing.assert_array_equal(step, expected_step)


def test_an_availability_trace_from_a_file(tmp_path):
    (tmp_path / "on.csv").write_text("1,0\n0,1\n1,1\n")
    sampler = COHORTS["trace"](tmp_path / "on.csv")(np.array([5, 6, 7]))
    assert sampler.sample(jax.random.key(0), 1).mask.tolist() == [False, True, True]
    assert COHORTS["trace"](tmp_path / "on.csv", size=2)(np.array([5, 6, 7])).slots == 2
    for text, told in (("1,2\n", "other than 0 and 1"), ("a,b\n", "not a table of 0 and 1")):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ValueError, match=told):
            COHORTS["trace"](tmp_path / "bad.csv")


def sent(table: dict, up) -> tuple:
    """What becomes of an upload through the channel that a table names, and how the table is
    recorded.
    """
    checked = configuration.checked(tables(channel=table))
    channel = configuration.build(checked).channel
    payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
    return channel.decode(payload), checked.tables["channel"]


@pytest.mark.slow
def test_a_channel_for_a_part_of_the_upload():
    up = {"phi": jnp.arange(1.0, 9.0), "beta": jnp.arange(3.0) / 3}
    got, record = sent({"name": "dithering", "levels": 7, "norm": 2, "part": "phi"}, up)
    assert record == {"name": "dithering", "levels": 7, "norm": 2, "part": "phi"}
    np.testing.assert_array_equal(got["beta"], up["beta"])
    step = np.linalg.norm(up["phi"]) / 7
    np.testing.assert_allclose(got["phi"] / step, np.round(got["phi"] / step), atol=1e-5)
    assert np.any(np.asarray(got["phi"]) != np.asarray(up["phi"]))
    got, _ = sent(
        {"name": "clipping", "maximum": 1.0, "then": {"name": "top_k", "k": 1}, "part": ["beta"]},
        up,
    )
    np.testing.assert_array_equal(got["phi"], up["phi"])
    assert np.count_nonzero(got["beta"]) == 1
    assert np.max(got["beta"]) < 1


def test_the_em_family_from_plain_values():
    model = {
        "name": "gaussian_mixture",
        "components": 2,
        "covariance": "diagonal",
        "means": [[0.0] * 10, [1.0] * 10],
    }
    method = {
        "name": "fedem",
        "step_size": 0.5,
        "decay": 0.6,
        "batch_size": 8,
        "oracle": "stream",
        "memory_rate": 0.8,
    }
    checked = configuration.checked(tables(model=model, method=method))
    assert checked.tables["model"]["ridge"] == 1e-6
    assert configuration.build(checked).method.name == "fedem"
    with pytest.raises(
        ConfigurationError,
        match="fedem cannot use the model 'logistic'; it needs one of factor_analysis",
    ):
        configuration.checked(tables(method=method))
    vr = configuration.checked(
        tables(model=model, method={"name": "vr_fedem", "inner": 5, "batch_size": 4})
    )
    assert configuration.build(vr).method.name == "vr_fedem"


def test_posterior_averaging_and_clusters_from_plain_values():
    kernel = {"name": "hmc", "steps": 5}
    chosen = [
        {"name": "fedpa", "samples": 4, "rho": "oas", "minibatches": "independent", "rank": 2},
        {"name": "fedpa", "rho": 0.5, "kernel": kernel, "step_size": 0.01, "weighting": "equal"},
        {"name": "clustered", "clusters": 2, "tolerance": 0.2},
        {"name": "mixture", "components": "auto"},
    ]
    found = [configuration.checked(tables(method=method)) for method in chosen]
    assert [configuration.build(one).method.name for one in found[:-1]] == [
        "fedpa",
        "fedpa",
        "clustered",
    ]
    assert found[0].tables["method"]["rho"] == "oas"
    assert found[-1].options["method"]["components"] == "auto"
    with pytest.raises(ConfigurationError, match=r"method.rho: .*got 'oass'"):
        configuration.checked(tables(method={"name": "fedpa", "rho": "oass"}))


OWN = """
from typing import NamedTuple

import covey


class State(NamedTuple):
    x: int


def _zeros():
    return 0


def mine(model: covey.models.Model, *, batch_size: int = 4) -> covey.Algorithm:
    return covey.mb_sgd(model, batch_size=batch_size)._replace(name="mine")
"""


def test_a_method_of_a_users_own_file_runs_and_resumes_from_anywhere(config, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[cohort]")
    own = '[method]\nname = "own.py:mine"\nbatch_size = 8\n\n'
    config.write_text(text[:start] + own + text[end:])
    monkeypatch.chdir(tmp_path)
    settings = configuration.read(config, overrides=["run.rounds=4", "run.evaluate_every=none"])
    out = tmp_path / "run"
    done = configuration.execute(settings, configuration.build(settings), out=out, progress=False)
    assert (done.method.name, done.round) == ("mine", 4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = configuration.reopen(out)
    assert (again.method.name, again.round) == ("mine", 4)

    (tmp_path / "own.py").write_text(OWN + "# changed\n")
    told = r"cannot be resumed: the file of method.name \(.*own.py:mine\) has changed since the run"
    with pytest.raises(ValueError, match=told):
        configuration.reopen(out)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("absent.py:mine", "method.name: .*absent.py does not exist"),
        ("own.py:other", r"has no function 'other' \(it has: mine\)"),
        ("own.py:mime", r"has no function 'mime'; did you mean 'mine'\? \(it has: mine\)"),
        ("own.py", "'own.py' is a file without a function; write FILE.py:FUNCTION"),
        ("broken.py:mine", r"broken.py cannot be imported: ZeroDivisionError \(line 1\): division"),
        ("leaving.py:mine", r"leaving.py cannot be imported: SystemExit \(line 2\): 3"),
        ("alone.py:mine", "beside_it.py lies beside it, but only installed packages are found"),
    ],
)
def test_files_that_are_no_methods_are_named(config, tmp_path, monkeypatch, name, told):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)")
    (tmp_path / "alone.py").write_text("import beside_it")
    (tmp_path / "beside_it.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=told):
        configuration.read(config, overrides=[f'method.name="{name}"'])


SIGNATURES = """
from __future__ import annotations
import covey


def unresolved(model: Modell):
    return covey.mb_sgd(model)


def untyped(model, rate=0.1):
    return covey.mb_sgd(model)


def needed(model, rate):
    return covey.mb_sgd(model)


def network(net):
    return covey.mb_sgd(net)


def last(*, batch_size: int = 4, model):
    return covey.mb_sgd(model, batch_size=batch_size)
"""


@pytest.mark.parametrize(
    ("function", "option", "told"),
    [
        ("unresolved", "", r"own.py:unresolved: an annotation .* name 'Modell' is not defined; im"),
        ("untyped", "rate = 0.2", "method.rate: .*own.py:untyped has the parameter 'rate' with no"),
        ("needed", "", "method.rate: .*needed has the parameter 'rate' with no type: annotate it"),
        ("network", "", "first parameter of .*own.py:network is called 'net'; the model is passed"),
        ("untyped", "", None),
        ("last", "batch_size = 8", None),
    ],
)
def test_a_factory_that_a_table_cannot_call_is_named(config, tmp_path, function, option, told):
    (tmp_path / "own.py").write_text(SIGNATURES)
    start, end = (text := config.read_text()).index("[method]"), text.index("[cohort]")
    own = f'[method]\nname = "own.py:{function}"\n{option}\n\n'
    (tmp_path / "study.toml").write_text(text[:start] + own + text[end:])
    if told is None:
        made = configuration.method_of(configuration.read(tmp_path / "study.toml"))
        assert made.name == "mb_sgd"
    else:
        with pytest.raises(ConfigurationError, match=told) as caught:
            configuration.read(tmp_path / "study.toml")
        assert len(str(caught.value).splitlines()) == 1


WRONG = """
import covey


def no_adapt():
    functions = covey.mb_sgd(covey.models.logistic())._asdict()
    del functions["adapt"]
    return covey.Algorithm(**functions)


def no_server():
    return covey.mb_sgd(covey.models.logistic())._replace(server=None)


def nothing():
    return 3


def broken():
    raise RuntimeError("no luck")
"""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("no_adapt", "the covey.Algorithm that it makes has no adapt; a method needs a name and"),
        ("no_server", "the method 'mb_sgd' has server=None: server must be a function"),
        ("nothing", "it returned int; a method returns a covey.Algorithm"),
        ("broken", "RuntimeError: no luck; COVEY_DEBUG=1 shows the line"),
    ],
)
def test_a_factory_of_a_users_file_that_makes_no_method_is_named(config, tmp_path, function, told):
    (tmp_path / "wrong.py").write_text(WRONG)
    name = f'method.name="{tmp_path}/wrong.py:{function}"'
    start, end = (text := config.read_text()).index("[method]"), text.index("[cohort]")
    config.write_text(f"{text[:start]}[method]\n\n{text[end:]}")
    settings = configuration.read(config, overrides=[name])
    with pytest.raises(ConfigurationError) as caught:
        configuration.method_of(settings)
    assert str(caught.value).startswith(f"method.name: {tmp_path}/wrong.py:{function}: {told}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_users_file_is_looked_for_beside_the_configuration_first(config, tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
        (folder / "own.py").write_text(OWN)
    (elsewhere / "other.py").write_text(OWN)
    start, end = (text := config.read_text()).index("[method]"), text.index("[cohort]")
    study = here / "study.toml"
    study.write_text(f'{text[:start]}[method]\nname = "own.py:mine"\n\n{text[end:]}')
    monkeypatch.chdir(elsewhere)
    settings = configuration.read(study, overrides=["run.rounds=2"])
    assert settings.tables["method"]["name"] == f"{here}/own.py:mine"
    found = configuration.read(study, overrides=['method.name="other.py:mine"'])
    assert found.tables["method"]["name"] == f"{elsewhere}/other.py:mine"
    with pytest.raises(ConfigurationError, match=r"here/no.py and .*elsewhere/no.py do not exist"):
        configuration.read(study, overrides=['method.name="no.py:mine"'])

    parts, out = configuration.build(settings), tmp_path / "run"
    configuration.execute(settings, parts, out=out, progress=False)
    again = configuration.read(out / "config.toml", overrides=["run.rounds=3"])
    done = configuration.execute(again, parts, out=out, resume=True, progress=False)
    assert done.round == 3


@pytest.mark.parametrize("rate", [-0.1, 0.0, 1e30])
def test_a_learning_rate_that_cannot_learn_is_refused(config, rate):
    steep = f"method.client_optimizer={{name = 'sgd', learning_rate = {rate}}}"
    with pytest.raises(ConfigurationError, match=r"learning_rate: must be above 0 and at most"):
        configuration.read(config, overrides=[steep])
