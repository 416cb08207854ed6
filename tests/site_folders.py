"""Sites for tests: a table and a site.toml each, in folders of their own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from covey.runs import toml

COLUMNS = ["age", "sex", "dose", "ward"]
OUTCOME = ["ill", "gain"]


def table_of(seed: int, rows: int = 60, *, level: str = "f m") -> pd.DataFrame:
    """Rows of one site: numbers, words, and two outcomes."""
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows)
    sex = np.asarray(level.split())[random.integers(0, len(level.split()), rows)]
    dose = random.normal(size=rows)
    lean = 0.05 * (age - 60) + 0.8 * dose + 0.5 * (sex == "m") + 0.6 * random.normal()
    ill = np.where(random.random(rows) < 1 / (1 + np.exp(-lean)), "yes", "no")
    gain = 2 * dose + lean + random.normal(size=rows)
    ward = np.asarray(["north", "south"])[random.integers(0, 2, rows)]
    return pd.DataFrame(
        {"age": age, "sex": sex, "dose": dose, "ward": ward, "ill": ill, "gain": gain, "name": "x"}
    )


def write_site(
    folder: Path,
    name: str,
    table: pd.DataFrame,
    changes: Mapping[str, Mapping[str, object]] | None = None,
) -> Path:
    """A site's folder with its table and its site.toml.

    `changes` change it by table and key; a table `privacy` is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "table.csv", index=False)
    tables: dict[str, dict] = {
        "site": {"name": name},
        "data": {"table": "table.csv", "columns": COLUMNS, "outcome": OUTCOME},
        "studies": {"methods": ["marginal", "fedavg", "fald"], "approve": "listed"},
        "privacy": {"budget": "none"},
    }
    for key, values in (changes or {}).items():
        tables[key] = ({} if key == "privacy" else tables.get(key, {})) | dict(values)
    path = folder / "site.toml"
    path.write_text(toml.text_of(tables))
    return path
