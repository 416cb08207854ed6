"""A study: plain values that a server sends and a site's owner can read, and their digest.

A study is configuration only. It names no file and carries no code: a site builds everything from
the version of Covey that is installed there.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from covey.config import user_code
from covey.core import toml_files
from covey.fitting.expressions import names_of, needs_of
from covey.fitting.formula import Formula, parse
from covey.fitting.methods import ESTIMATES, METHODS
from covey.fitting.priors import read_prior
from covey.fitting.uses import RULES

if TYPE_CHECKING:
    from covey.config.checking import Configuration

Kind: TypeAlias = Literal["fit", "run"]
Tables: TypeAlias = dict[str, dict[str, Any]]

FORMAT = 1  # of the canonical text that a digest is of
MOST_TEXT = 50_000  # characters of a study as JSON
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FIT = ("formula", "family", "estimate", "method", "priors", "missing", "weights", "seed")
_COLUMNS = ("features", "outcome", "classes", "validation", "test", "standardise")
_RUN = ("columns", "model", "method", "cohort", "channel", "privacy", "run")
_HERE = {"name": "saved", "path": "."}  # stands for a site's rows, where a configuration is checked
_NOT_DEPLOYED = ("engine", "chunk", "storage")


class StudyError(ValueError):
    """The mistakes of a study, one per line."""


@dataclass(frozen=True)
class Study:
    """A study, checked; made by `read`, `of_formula` and `from_json`.

    Attributes:
        name: Its name: letters, digits, `_`, `-` and `.`.
        kind: "fit" for a formula, "run" for a method with its model.
        tables: Everything else in plain values, defaults included.
    """

    name: str
    kind: Kind
    tables: Tables

    @property
    def text(self) -> str:
        """The study as canonical JSON: sorted keys, no spaces."""
        content = {"format": FORMAT, "name": self.name, "kind": self.kind, "tables": self.tables}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text: two studies differ exactly where their digests do."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def method(self) -> str:
        """The method's name."""
        return self.tables["fit"]["method"] if self.kind == "fit" else self.tables["method"]["name"]

    @property
    def seed(self) -> int:
        """Seed of all random values, except the secret ones of sites."""
        return self.tables["fit" if self.kind == "fit" else "run"]["seed"]

    @property
    def rounds(self) -> int | None:
        """Rounds that are asked for; None where the method ends by itself."""
        return None if self.kind == "fit" else self.tables["run"].get("rounds")

    @property
    def formula(self) -> Formula | None:
        """The formula of a fit."""
        return parse(self.tables["fit"]["formula"]) if self.kind == "fit" else None

    @property
    def outcome(self) -> tuple[str, ...]:
        """Columns of the outcome."""
        formula = self.formula
        if formula is None:
            return (self.tables["columns"]["outcome"],)
        return tuple(
            dict.fromkeys(name for one in formula.outcome.expressions for name in names_of(one))
        )

    @property
    def predictors(self) -> tuple[str, ...]:
        """Columns that are used beside the outcome, groups inside a site included."""
        formula = self.formula
        if formula is None:
            return tuple(self.tables["columns"]["features"])
        weights = self.tables["fit"].get("weights")
        offsets = [name for one in formula.offsets for name in names_of(one)]
        groups = [bar.group for bar in formula.bars if bar.within is not None]
        needed = [*needs_of(formula).columns, *offsets, *groups, *([weights] if weights else [])]
        return tuple(name for name in dict.fromkeys(needed) if name not in self.outcome)

    def configuration(self) -> "Configuration":
        """The method, model, cohort and channel of a run, checked against their factories."""
        from covey.config.checking import checked

        given = {name: table for name, table in self.tables.items() if name != "columns"}
        return checked({"data": _HERE, **given})

    def words(self) -> list[str]:
        """The description of the study, in sentences for a site's owner."""
        seen = ", ".join(self.predictors) or "none"
        if self.kind == "fit":
            fit = self.tables["fit"]
            family = fit.get("family") or "chosen by the outcome"
            first = f"It fits {fit['formula']} (family: {family}) by {self.method}."
        else:
            rounds = self.rounds
            asked = (
                "until it has settled"
                if rounds is None
                else f"for {rounds} round{'s' * (rounds != 1)}"
            )
            model = self.tables["model"]["name"]
            first = f"It runs {self.method} with the model {model} {asked}."
        return [
            first,
            f"It uses the outcome {', '.join(self.outcome)} and the columns {seen}.",
            f"Its digest is {self.digest}.",
        ]


def read(path: str | Path) -> Study:
    """A study from its TOML file: that of `covey run` without data, or a formula.

    Args:
        path: The file. `[study] name` names the study; default: the file's name. A formula stands
            in `[fit]`; a run has `[columns]` (features, outcome, classes, validation, test,
            standardise), `[model]`, `[method]` and `[run]`, and where wanted `[cohort]`,
            `[channel]` and `[privacy]`.

    Returns:
        The study, defaults filled in.

    Raises:
        StudyError: With a line for each mistake.
    """
    path = Path(path)
    tables = toml_files.read(path)
    head = tables.pop("study", {})
    try:
        if not isinstance(head, Mapping) or set(head) - {"name"}:
            raise StudyError("[study]: has one key, name")
        return of_tables(str(head.get("name", path.stem)), tables)
    except StudyError as error:
        lines = [f"{path}: {line}" for line in str(error).splitlines()]
        raise StudyError("\n".join(lines)) from None


def of_formula(
    name: str,
    formula: str,
    *,
    family: str | None = None,
    estimate: str = "posterior",
    method: str = "marginal",
    priors: Mapping[str, str] | None = None,
    missing: str = "drop",
    weights: str | None = None,
    seed: int = 0,
) -> Study:
    """The study of a formula; arguments as those of `covey.fit`.

    Args:
        name: The study's name.
        formula: Outcome, predictors and bar terms.
        family: Family of the outcome. Default: chosen by the outcome.
        estimate: "posterior", "ml" or "reml".
        method: "marginal", "fedpop" or "fald".
        priors: By term. Default: weakly informative ones.
        missing: Treatment of missing values: "drop", "impute" or "indicator".
        weights: Column of prior weights.
        seed: Seed of everything random.

    Returns:
        The study.

    Example:
        >>> study = of_formula("heart", "ill ~ age + scale(chol) + (1 | hospital)")
        >>> study.outcome, study.predictors, study.digest[:8]
        (('ill',), ('age', 'chol'), 'cd5fc6c7')
    """
    given = {
        "formula": formula,
        "family": family,
        "estimate": estimate,
        "method": method,
        "priors": None if priors is None else dict(priors),
        "missing": missing,
        "weights": weights,
        "seed": seed,
    }
    return of_tables(
        name, {"fit": {key: value for key, value in given.items() if value is not None}}
    )


def from_json(text: str) -> Study:
    """The study that a server has sent, checked again.

    Args:
        text: Its canonical text.

    Raises:
        StudyError: It is not the text of a study of this version.
    """
    if len(text) > MOST_TEXT:
        raise StudyError(f"a study has at most {MOST_TEXT} characters, got {len(text)}")
    try:
        content = json.loads(text)
        form, name, tables = content["format"], content["name"], content["tables"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StudyError(f"this is not a study: {error}") from None
    if form != FORMAT:
        raise StudyError(f"the study has format {form!r}, and this version reads format {FORMAT}")
    study = of_tables(name, tables)
    if study.text != text:
        raise StudyError(
            "the study reads differently here: the server has another version of Covey, with other "
            "options or defaults; install the same version at both"
        )
    return study


def of_tables(name: object, tables: object) -> Study:
    """A study from its tables, checked and with defaults filled in.

    Args:
        name: Its name.
        tables: `fit`, or those of a run.

    Raises:
        StudyError: With a line for each mistake.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise StudyError(
            f"study.name: letters, digits, _ - and . are allowed, at most 64, got {name!r}"
        )
    if not isinstance(tables, Mapping) or not all(isinstance(t, Mapping) for t in tables.values()):
        raise StudyError("a study has tables: [fit], or [columns], [model], [method] and [run]")
    code = [where for where, text in _texts(tables) if user_code.is_user_code(text)]
    if code:
        raise StudyError(
            f"{code[0]}: names a file with code, and a study carries none; use names that are "
            "installed with Covey"
        )
    plain = {str(key): dict(value) for key, value in tables.items()}
    try:
        if "fit" in plain:
            return Study(name, "fit", {"fit": _fit(plain)})
        return Study(name, "run", _run(plain))
    except StudyError:
        raise
    except ValueError as error:
        raise StudyError(str(error)) from None


def _fit(tables: Tables) -> dict[str, Any]:
    others = [one for one in tables if one != "fit"]
    if others:
        raise StudyError(f"[{others[0]}]: a formula has the table [fit] alone")
    given = tables["fit"]
    _only("fit", given, _FIT)
    if not isinstance(given.get("formula"), str):
        raise StudyError("fit.formula: is missing, e.g. 'ill ~ age + (1 | hospital)'")
    _need_texts("fit", given, ("family", "estimate", "method", "missing", "weights"))
    priors = given.get("priors", {})
    if not isinstance(priors, Mapping) or not all(isinstance(v, str) for v in priors.values()):
        raise StudyError("fit.priors: is a table of texts by term, e.g. {age = 'normal(0, 1)'}")
    filled = {"estimate": "posterior", "method": "marginal", "missing": "drop", "seed": 0} | given
    _seed("fit.seed", filled["seed"])
    for key, known in (("method", METHODS), ("estimate", ESTIMATES), ("missing", RULES)):
        if filled[key] not in known:
            raise StudyError(f"fit.{key}: one of {', '.join(known)} is needed, got {filled[key]!r}")
    for term, text in priors.items():
        read_prior(term, text)
    needs_of(parse(filled["formula"]))  # functions of the fixed list only
    return filled


def _run(tables: Tables) -> Tables:
    wrong = [one for one in tables if one not in _RUN]
    if wrong:
        hint = {
            "data": "sites have the data; name columns in [columns]",
            "faults": "faults are of simulations",
            "topology": "a study has a server",
        }.get(wrong[0], f"known: {', '.join(_RUN)}, or [fit] with a formula")
        raise StudyError(f"[{wrong[0]}]: is no table of a study; {hint}")
    lacking = [one for one in ("columns", "model", "method", "run") if one not in tables]
    if lacking:
        raise StudyError(f"[{lacking[0]}]: is missing; or give [fit] with a formula")
    columns = _columns(tables["columns"])
    from covey.config.checking import checked

    for key in _NOT_DEPLOYED:
        if key in tables["run"]:
            raise StudyError(f"run.{key}: is of simulations; leave it out")
    given = {name: table for name, table in tables.items() if name != "columns"}
    found = checked({"data": _HERE, **given})
    files = [
        f"{table}.{key}"
        for table, options in found.options.items()
        for key, value in options.items()
        if isinstance(value, Path) and table != "data"
    ]
    if files:
        raise StudyError(f"{files[0]}: names a file, and a study carries none")
    kept = {name: table for name, table in found.tables.items() if name in _RUN}
    run = {key: value for key, value in kept.pop("run").items() if key not in _NOT_DEPLOYED}
    _seed("run.seed", run.get("seed"))
    return {"columns": columns, **kept, "run": run}


def _columns(given: dict[str, Any]) -> dict[str, Any]:
    _only("columns", given, _COLUMNS)
    filled = {"validation": 0.0, "test": 0.0, "standardise": False} | given
    features, outcome, classes = filled.get("features"), filled.get("outcome"), given.get("classes")
    named = isinstance(features, (list, tuple)) and all(isinstance(one, str) for one in features)
    if not named or not features or len(set(features)) < len(features):
        raise StudyError("columns.features: a list of different columns is needed")
    if not isinstance(outcome, str) or outcome in features:
        raise StudyError("columns.outcome: the name of a column is needed that is no feature")
    if classes is not None and (type(classes) is not int or classes < 2):
        raise StudyError(f"columns.classes: a whole number from 2 is needed, got {classes!r}")
    for key in ("validation", "test"):
        share = filled[key]
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise StudyError(
                f"columns.{key}: a fraction from 0 to below 1 is needed, got {share!r}"
            )
        filled[key] = float(share)
    if filled["validation"] + filled["test"] >= 1:
        raise StudyError("columns: validation and test leave no training rows")
    if type(filled["standardise"]) is not bool:
        raise StudyError("columns.standardise: true or false is needed")
    return filled | {"features": list(features)}


def _only(table: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    from covey.config.options import unknown

    wrong = [unknown(f"{table}.{key}", key, known, "key") for key in given if key not in known]
    if wrong:
        raise StudyError("\n".join(wrong))


def _need_texts(table: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in given and not isinstance(given[key], str):
            raise StudyError(f"{table}.{key}: a text is needed, got {given[key]!r}")


def _seed(where: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**64:
        raise StudyError(f"{where}: a whole number from 0 to 2^64 - 1 is needed, got {value!r}")


def _texts(value: object, where: str = "study") -> Iterator[tuple[str, str]]:
    """Every text inside of tables, with its place; an error for numbers that are not finite."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, float) and not math.isfinite(value):
        raise StudyError(f"{where}: a finite number is needed, got {value}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(part, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _texts(part, f"{where}[{at}]")
