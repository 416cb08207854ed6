"""The heart disease data as four hospitals would send them: words, blanks, an id and a date, and in
one file another order of the columns.
"""

from pathlib import Path

import numpy as np
import pandas as pd

PAIN = {1.0: "typical", 2.0: "atypical", 3.0: "non-anginal", 4.0: "none"}
BLANKS = {"cleveland": "?", "hungarian": "", "switzerland": "NA", "va": "null"}


def messy_hospitals(
    folder: Path, data_dir: Path, *, rows: int | None = None
) -> dict[str, pd.DataFrame]:
    """Write one CSV file per hospital, and return the tables as one would read them by hand.

    Args:
        folder: Where the files go.
        data_dir: The folder of public data sets.
        rows: Most rows per hospital; None writes all.

    Returns:
        For each hospital, its table with numbers and NaN: `age`, `male` (0, 1), `cp` (words or
        None), `chol`, `thalach` and `disease` (0, 1).
    """
    everyone = pd.read_csv(data_dir / "heart_disease" / "heart_disease_4centers.csv")
    folder.mkdir(parents=True, exist_ok=True)
    clean = {}
    for name, blank in BLANKS.items():
        table = everyone[everyone.center == name].reset_index(drop=True)
        table = table if rows is None else table.head(rows)
        kept = pd.DataFrame(
            {
                "age": table.age,
                "male": table.sex,
                "cp": table.cp.map(PAIN),
                "chol": table.chol.where(table.chol > 0),
                "thalach": table.thalach,
                "disease": table.target,
            }
        )
        clean[name] = kept
        words = pd.DataFrame(
            {
                "patient_id": [f"{name[:2].upper()}-{index:04d}" for index in range(len(kept))],
                "visit_date": pd.date_range("2019-03-01", periods=len(kept)).strftime("%d.%m.%Y"),
                "age": kept.age.astype(int),
                "sex": np.where(kept.male == 1, "male", "female"),
                "chest_pain": kept.cp,
                "chol": kept.chol,
                "thalach": kept.thalach,
                "disease": np.where(kept.disease == 1, "yes", "no"),
            }
        )
        words.loc[words.index[::50], "visit_date"] = None  # gaps in columns that nobody uses
        if name == "hungarian":
            words = words[words.columns[::-1]]
        words.to_csv(folder / f"{name}.csv", index=False, na_rep=blank)
    return clean
