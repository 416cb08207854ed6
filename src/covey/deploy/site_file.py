"""`site.toml`: the permissions of a site's owner. It stays there and nobody else changes it."""

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from covey.core import toml_files
from covey.fitting.expressions import needs_of
from covey.fitting.formula import parse
from covey.fitting.tables import check_name

SMALLEST_COUNT = 5  # counts below it leave no site; an owner may only raise it
_MEGABYTE = 1_000_000

_ALLOWED = {  # by the type of a mistake
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt:g}",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text in quotes",
    "string_too_short": "a text of at least {min_length} letter",
    "path_type": "a path in quotes",
    "tuple_type": 'a list of texts, e.g. ["age", "sex"],',
    "too_short": "a list of at least {min_length} text",
    "literal_error": "{expected}",
    "model_type": "a table of keys",
}

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Names: TypeAlias = Annotated[tuple[Text, ...], Field(min_length=1)]


class SiteFileError(ValueError):
    """The mistakes of a `site.toml`, one per line, each with file and key."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Owner(_Table):
    """`[site]`: who this is.

    Attributes:
        name: The site's name, the same as in its certificate.
        state: Folder for approvals, ledger, audit log, the state of each study, and results.
            Default: `covey-site` beside the file.
    """

    name: str = Field(min_length=1)
    state: Path = Path("covey-site")


class Data(_Table):
    """`[data]`: the table, and the columns of it that studies may use.

    Attributes:
        table: The table, a CSV or Parquet file.
        columns: Columns that studies may use as predictors, offsets, weights or groups. No other
            column is looked at.
        outcome: Columns that studies may use as outcomes.
    """

    table: Path
    columns: Names
    outcome: Names


class Studies(_Table):
    """`[studies]`: the studies that the site accepts.

    Attributes:
        methods: Methods that the site runs, by name, e.g. ["marginal"].
        names: Names of studies, where * stands for any text. Default: any name.
        formulas: Formulas that the site fits, as texts; spaces do not count. Default: any formula
            of the site's columns.
        approve: "ask" (default): a study waits for `covey site approve`. "listed": a study whose
            name, method, formula and columns are allowed here starts without being asked for.
    """

    methods: Names
    names: Names = ("*",)
    formulas: Names | None = None
    approve: Literal["ask", "listed"] = "ask"


class Limits(_Table):
    """`[limits]`: how much leaves the site.

    Attributes:
        min_rows: Least number of usable rows with which the site takes part. Default: 20.
        min_count: Smallest count of rows that a study of a formula may learn. Default and least: 5.
        rare_levels: Rows with a level of a factor, a combination of levels, or a gap to be filled
            that fewer than `min_count` rows of this site have. "drop" (default): they are left out
            of the study at this site. "use": they are used, the names of their levels leave, and
            their counts can be computed from the site's sums.
        most_rounds: Most rounds, questions and evaluations that the site answers for one study. A
            study that says that it needs more is refused before its first round. Default: 1000.
        most_bytes: Largest message in either direction, in bytes. Default: 64 MB.
    """

    min_rows: int = Field(default=20, ge=1, strict=True)
    min_count: int = Field(default=SMALLEST_COUNT, ge=SMALLEST_COUNT, strict=True)
    rare_levels: Literal["drop", "use"] = "drop"
    most_rounds: int = Field(default=1000, ge=1, strict=True)
    most_bytes: int = Field(default=64 * _MEGABYTE, ge=1000, strict=True)


class Privacy(_Table):
    """`[privacy]`: the budget over all studies together.

    Attributes:
        budget: "none" for a site that keeps no budget: its methods' sums leave without noise.
            Without it, epsilon and delta are needed, and only methods that account for what they
            reveal of a row are run.
        epsilon: Largest epsilon of all studies together.
        delta: Delta of all studies together.
        randomness: Source of the random values of uploads. "secret" (default): from this
            machine's entropy, which no server knows. "study": from the study's seed, so that a run
            can be repeated; the server could subtract the noise, so it goes with budget = "none".
    """

    budget: Literal["none"] | None = None
    epsilon: float | None = Field(default=None, gt=0, strict=True, allow_inf_nan=False)
    delta: float | None = Field(default=None, gt=0, lt=1, strict=True, allow_inf_nan=False)
    randomness: Literal["secret", "study"] = "secret"

    @model_validator(mode="after")
    def _one_of_both(self) -> "Privacy":
        given = {"epsilon": self.epsilon, "delta": self.delta}
        there = [key for key, value in given.items() if value is not None]
        if self.budget == "none" and there:
            raise ValueError(
                f'budget = "none" is given with {" and ".join(there)}, and it means that no budget '
                "is kept; leave one of them out"
            )
        if self.budget is None and len(there) < len(given):
            found = f"{there[0]} is given alone" if there else "nothing is given"
            raise ValueError(
                f"{found}; give epsilon and delta, e.g. epsilon = 3.0 and delta = 1e-5, or "
                'budget = "none" to keep no budget'
            )
        if self.budget is None and self.randomness == "study":
            raise ValueError(
                'randomness = "study" is known to the server, which could subtract the noise; '
                'leave it out, or set budget = "none"'
            )
        return self


class Metrics(_Table):
    """`[metrics]`: who sees how well a model predicts this site's rows.

    Attributes:
        shown_to: "nobody" (default): evaluations are refused, and what a method reports beside its
            upload, e.g. its training loss, is not sent. "server": the study's server sees them.
    """

    shown_to: Literal["nobody", "server"] = "nobody"


class SiteFile(_Table):
    """A checked `site.toml`; paths are absolute."""

    site: Owner
    data: Data
    studies: Studies
    privacy: Privacy
    limits: Limits = Limits()
    metrics: Metrics = Metrics()

    @property
    def name(self) -> str:
        """The site's name."""
        return self.site.name

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a study may use."""
        return tuple(dict.fromkeys([*self.data.columns, *self.data.outcome]))

    def allows_name(self, study: str) -> bool:
        """Whether a study may have this name."""
        return any(fnmatchcase(study, pattern) for pattern in self.studies.names)

    def allows_formula(self, formula: str) -> bool:
        """Whether a formula is listed, or none is; spaces do not count."""
        listed = self.studies.formulas
        return listed is None or _without_spaces(formula) in map(_without_spaces, listed)


def read(path: str | Path) -> SiteFile:
    """Read and check a `site.toml`.

    Args:
        path: The file. Paths in it are relative to its folder.

    Returns:
        What it says, with absolute paths.

    Raises:
        SiteFileError: With a line for each mistake: the file, the key, what was given, what is
            allowed and what to do.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = '''
        ... [site]
        ... name = "basel"
        ... [data]
        ... table = "heart.csv"
        ... columns = ["age", "sex"]
        ... outcome = ["disease"]
        ... [studies]
        ... methods = ["marginal"]
        ... [privacy]
        ... budget = "none"
        ... '''
        >>> _ = (folder / "site.toml").write_text(text)
        >>> _ = (folder / "heart.csv").write_text("age,sex,disease")
        >>> found = read(folder / "site.toml")
        >>> found.name, found.limits.min_rows, found.data.table == folder / "heart.csv"
        ('basel', 20, True)
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise SiteFileError(f"there is no file {path}; a site's owner writes it")
    try:
        found = SiteFile.model_validate(toml_files.read(path))
    except ValidationError as error:
        lines = [f"{path}: {_line(one)}" for one in error.errors()]
        raise SiteFileError("\n".join(lines)) from None
    _check(path, found)
    folder = path.parent
    return found.model_copy(
        update={
            "site": found.site.model_copy(update={"state": folder / found.site.state}),
            "data": found.data.model_copy(update={"table": folder / found.data.table}),
        }
    )


def _check(path: Path, found: SiteFile) -> None:
    """Names that are not known, columns with two roles, paths where nothing is."""
    from covey.config.catalogue import METHODS
    from covey.config.options import unknown

    errors = [
        unknown("studies.methods", name, METHODS, "method")
        for name in found.studies.methods
        if name not in METHODS
    ]
    both = [name for name in found.data.columns if name in found.data.outcome]
    errors += [
        f"data.columns: {name!r} is also in data.outcome; a column has one role" for name in both
    ]
    for key, names in (("columns", found.data.columns), ("outcome", found.data.outcome)):
        twice = sorted({name for name in names if names.count(name) > 1})
        errors += [f"data.{key}: {name!r} is there twice; once is enough" for name in twice]
    try:
        check_name(found.name)
    except ValueError as error:
        errors.append(f"site.name: {error}")
    for text in found.studies.formulas or ():
        try:
            needs_of(parse(text))
        except ValueError as error:
            errors.append(f"studies.formulas: {text!r} is no formula: {error}")
    if found.privacy.budget is None and found.metrics.shown_to == "server":
        errors.append(
            "metrics.shown_to: 'server' lets metrics leave without noise, which the budget of "
            "[privacy] does not count; take 'nobody', or keep no budget"
        )
    errors += _wrong_paths(path.parent, found)
    if errors:
        raise SiteFileError("\n".join(f"{path}: {line}" for line in errors))


def _wrong_paths(folder: Path, found: SiteFile) -> Iterator[str]:
    table, state = folder / found.data.table, folder / found.site.state
    what = f"name a CSV or Parquet file; paths are relative to {folder}"
    if table.is_dir():
        yield f"data.table: {table} is a folder; {what}"
    elif not table.exists():
        yield f"data.table: there is no file {table}; {what}"
    if state.exists() and not state.is_dir():
        yield f"site.state: {state} is a file; name a folder, or leave the key out"


def _line(error: Any) -> str:
    """A mistake in one line: the key, the mistake, the given value."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        what = "table" if len(error["loc"]) == 1 else "key"
        return (
            f"{where}: this {what} is missing; the guide 'Running a site' has a whole file to "
            "start from"
        )
    if error["type"] == "extra_forbidden":
        known = _known(error["loc"][:-1])
        near = get_close_matches(str(error["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{where}: there is no such key; {hint}(known: {', '.join(known)})"
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    allowed = str(_ALLOWED.get(error["type"], error["msg"])).format(**error.get("ctx", {}))
    key = str(error["loc"][-1])
    default = _default(error["loc"][:-1], key)
    remedy = "correct it" if default is None else f"or leave the key out for {default!r}"
    return f"{where}: got {error['input']!r}, and {allowed} is needed; {remedy}"


def _default(place: tuple[Any, ...], key: str) -> Any:
    """The default of a key; None where it has none."""
    kind = SiteFile.model_fields[str(place[0])].annotation if len(place) == 1 else None
    if not (isinstance(kind, type) and issubclass(kind, _Table)) or key not in kind.model_fields:
        return None
    field = kind.model_fields[key]
    return None if field.is_required() else field.default


def _known(place: tuple[Any, ...]) -> list[str]:
    if not place:
        return list(SiteFile.model_fields)
    field = SiteFile.model_fields[str(place[0])].annotation
    return list(field.model_fields) if isinstance(field, type) and issubclass(field, _Table) else []


def _without_spaces(text: str) -> str:
    return "".join(text.split())
