"""`covey demo`: the commands of a study, typed one after the other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line
from covey.core.compiling import compile_quickly

if TYPE_CHECKING:
    import pandas as pd

FORMULA = "disease ~ scale(age) + sex + chest_pain + scale(max_heart_rate) + (1 | hospital)"
NEW = "va"  # the hospital that joins later
_PAIN = {1: "typical", 2: "atypical", 3: "non-anginal", 4: "none"}
_STORY = (
    "Three hospitals fit one model; no patient leaves a hospital.",
    "Patients of Cleveland, as Cleveland would predict them: probability and intervals.",
    "A fourth hospital joins: its intercept, given its patients, without a refit.",
    "The report to show: coefficients, hospitals, calibration, messages of each site.",
)


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the tables, the fit and its report.")
    ] = Path("runs/demo"),
) -> None:
    """Four hospitals learn together without sharing a patient: under a minute."""
    compile_quickly()
    with mistakes_in_one_line():
        write_tables(out)
    for story, words in zip(_STORY, commands(out), strict=True):
        console.print(Text(f"\n{story}", style="bold"), soft_wrap=True)
        console.print(
            Text(f"$ covey {' '.join(map(_quoted, words))}", style="cyan"), soft_wrap=True
        )
        _type(words)


def commands(out: Path) -> list[list[str]]:
    """The commands of the demonstration, as words.

    Args:
        out: Its folder.
    """
    run, new = str(out / "heart"), str(out / "new" / f"{NEW}.csv")
    return [
        ["fit", FORMULA, "--data", str(out / "hospitals"), "--missing", "impute", "--out", run],
        ["predict", run, str(out / "new" / "patients.csv"), "--client", "cleveland"],
        ["add-client", run, new],
        ["report", run, "--data", str(out / "hospitals")],
    ]


def hospital_tables() -> dict[str, "pd.DataFrame"]:
    """The heart disease data as hospitals have them: one table each, with words."""
    import numpy as np
    import pandas as pd

    from covey.datasets.loaders import load

    data = load("heart_disease")
    frame = pd.DataFrame(np.asarray(data.rows.x, float), columns=list(data.features or ()))
    whole = pd.DataFrame(
        {
            "age": frame["age"].astype(int),
            "sex": np.where(frame["sex"] == 1, "male", "female"),
            "chest_pain": [_PAIN.get(code) for code in frame["cp"]],
            "max_heart_rate": frame["thalach"],
            "disease": np.where(np.asarray(data.rows.y) == 1, "yes", "no"),
        }
    )
    names = [] if data.names is None else [str(name) for name in data.names]
    owner = np.repeat(np.asarray(names), data.counts("train"))
    return {name: whole.loc[owner == name].reset_index(drop=True) for name in names}


def write_tables(out: Path) -> None:
    """One CSV file per hospital, those of new patients and of the hospital that joins apart.

    Args:
        out: The folder of the demonstration; a fit of an earlier one is removed.
    """
    import shutil

    fitted = out / "heart"
    if fitted.exists() and not (fitted / "config.toml").is_file():  # also of an interrupted fit
        raise ValueError(
            f"{fitted} is not a fit of an earlier demonstration: nothing was changed; give a new "
            "folder with --out"
        )
    tables = hospital_tables()
    for name, table in tables.items():
        folder = out / ("new" if name == NEW else "hospitals")
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / f"{name}.csv", index=False)
    some = tables["cleveland"].drop(columns="disease").head(5)
    some.to_csv(out / "new" / "patients.csv", index=False)
    if fitted.exists():
        shutil.rmtree(fitted)


def _type(words: list[str]) -> None:
    """Run a command of this program as it is typed."""
    from covey.cli import app

    app(words, standalone_mode=False)


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
