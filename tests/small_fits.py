"""Small tables whose fits several tests share."""

import numpy as np
import pandas as pd

FORMULA = "gain ~ dose + sex + (1 + dose | clinic)"


def clinics(sites: int = 8, rows: int = 20, seed: int = 1) -> dict[str, pd.DataFrame]:
    """Tables with a random intercept and a random slope."""
    random, found = np.random.default_rng(seed), {}
    for index in range(sites):
        dose = random.normal(2, 1, size=rows)
        sex = random.choice(["f", "m"], size=rows)
        own, slope = random.normal(0, 1.0), random.normal(0, 0.5)
        mean = 1 + own + (0.7 + slope) * dose + 0.4 * (sex == "m")
        gain = mean + random.normal(0, 0.8, size=rows)
        found[f"clinic{index}"] = pd.DataFrame({"gain": gain, "dose": dose, "sex": sex})
    return found
