"""The grid of a sweep: every combination of the given settings, for every seed."""

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from covey.config.checking import Configuration, ConfigurationError, read
from covey.core import toml_files
from covey.runs import toml

# Metrics of a run in a sweep are of these rows, and settings are chosen by them.
SPLIT = "validation"
_OPEN, _CLOSE, _QUOTES = "[{(", "]})", "\"'"
_RESERVED = {
    "run.seed": "--seeds says how many seeds each setting gets",
    "run.split": f"a sweep chooses by {SPLIT} rows only",
}
_NAME_LENGTH = 80  # characters of a run directory's name before its seed and digest


class Axis(NamedTuple):
    """One setting that varies: "table.key", and its values as they were written."""

    key: str
    values: tuple[str, ...]


class Trial(NamedTuple):
    """One run of a grid.

    Attributes:
        study: The configuration file.
        settings: "table.key" and value, of every axis.
        seed: Seed of the run.
        directory: Its run directory.
    """

    study: Path
    settings: tuple[tuple[str, str], ...]
    seed: int
    directory: Path

    @property
    def overrides(self) -> list[str]:
        """The arguments of `covey run --set`."""
        return [f"{key}={value}" for key, value in self.settings]

    def configuration(self) -> Configuration:
        """The checked configuration of the run."""
        evaluated = f"run.split={SPLIT}"
        return read(self.study, overrides=[*self.overrides, evaluated], seed=self.seed)

    def __str__(self) -> str:
        words = [f"{_last(key)} {value}" for key, value in self.settings]
        return ", ".join([*words, f"seed {self.seed}"])


def axis_of(given: str) -> Axis:
    """The axis of "table.key=value,value,...".

    Values are separated by commas outside of brackets and quotes, so that a value may itself be a
    list or a table.

    Args:
        given: The text after `--set`.

    Returns:
        The key and its values.

    Raises:
        ConfigurationError: There is no key, no value, or the same value twice.

    Example:
        >>> axis_of("method.step_size=0.01,0.1")
        Axis(key='method.step_size', values=('0.01', '0.1'))
        >>> axis_of('method.kernel={name="sgld", batch_size=8},"ula"').values
        ('{name="sgld", batch_size=8}', '"ula"')
    """
    key, equals, text = (part.strip() for part in given.partition("="))
    if not equals or "." not in key:
        raise ConfigurationError(
            f"--set {given}: write table.key=value,value, e.g. --set method.step_size=0.01,0.1"
        )
    if key in _RESERVED:
        raise ConfigurationError(f"--set {given}: {key} cannot be swept; {_RESERVED[key]}")
    values = _separated(text)
    if not all(values):
        what = "the list is empty" if values == ("",) else "a value of the list is empty"
        raise ConfigurationError(f"--set {given}: {what}; write {key}=value,value")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigurationError(f"--set {given}: {twice[0]} is there twice")
    return Axis(key, values)


def grid_of(study: Path, axes: Sequence[Axis], seeds: int, out: Path) -> list[Trial]:
    """Every combination of the settings, for every seed, each checked.

    Args:
        study: The configuration file; its `run.seed` is the first seed.
        axes: The settings that vary.
        seeds: Seeds per combination.
        out: Folder of the run directories.

    Returns:
        The runs, seeds of one combination next to each other. The name of a run directory ends
        with a digest of its configuration: a changed study never finds the runs of another.

    Raises:
        ConfigurationError: A line for each mistake in the study or the settings.
    """
    if seeds < 1:
        raise ConfigurationError(f"--seeds must be at least 1, got {seeds}")
    keys = [axis.key for axis in axes]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigurationError(f"--set {twice[0]} was given twice: put all values in one list")
    first = toml_files.read(study).get("run", {}).get("seed", 0)
    if not isinstance(first, int):
        raise ConfigurationError(f"{study}: run.seed: a whole number is needed, got {first!r}")
    trials: list[Trial] = []
    errors: dict[str, None] = {}
    for values in product(*(axis.values for axis in axes)):
        settings = tuple(zip(keys, values, strict=True))
        for seed in range(first, first + seeds):
            try:
                trials.append(_placed(Trial(study, settings, seed, out)))
            except ConfigurationError as error:
                errors |= dict.fromkeys(str(error).splitlines())
    if errors:
        raise ConfigurationError("\n".join(errors))
    return _different(trials)


def _placed(trial: Trial) -> Trial:
    """The trial with its run directory below the folder of all of them."""
    tables = toml.flat(trial.configuration().tables)
    digest = hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()
    words = "_".join(f"{_last(key)}-{value}" for key, value in trial.settings)
    plain = re.sub(r"[^\w.+-]+", "-", words)[:_NAME_LENGTH].strip("-")
    name = "_".join([*([plain] if plain else []), f"seed-{trial.seed}", digest[:8]])
    return trial._replace(directory=trial.directory / name)


def _different(trials: list[Trial]) -> list[Trial]:
    """The trials, where no two describe the same run."""
    known: dict[str, Trial] = {}
    for trial in trials:
        digest = trial.directory.name.rpartition("_")[2]
        if digest in known:
            raise ConfigurationError(f"{known[digest]} and {trial} are the same run; leave one out")
        known[digest] = trial
    return trials


def _separated(text: str) -> tuple[str, ...]:
    """The parts between commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        elif sign == "," and not depth:
            parts.append("")
            continue
        depth += 0 if quote else (sign in _OPEN) - (sign in _CLOSE)
        parts[-1] += sign
    return tuple(part.strip() for part in parts)


def _last(key: str) -> str:
    return key.rpartition(".")[2]
