"""A fit in sentences: the model, the messages of the sites, the dropped rows, and whether the
result can be trusted.
"""

from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from covey.fitting.design import Design
from covey.fitting.families import LINKS

if TYPE_CHECKING:
    from covey.fitting.result import Fit

HIGHEST_K, GOOD_K, FEW = 0.7, 0.5, 400.0


class Summary(pd.DataFrame):
    """A table whose print ends with sentences."""

    @property
    def _constructor(self):  # what is made of it is a plain table
        return pd.DataFrame

    def __repr__(self) -> str:
        said = "\n".join(self.attrs.get("sentences", ()))
        table = pd.DataFrame(self).to_string(float_format="{:.4g}".format)
        return f"{table}\n\n{said}" if said else table

    __str__ = __repr__

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(one)}</p>" for one in self.attrs.get("sentences", ()))
        return pd.DataFrame(self).to_html(float_format="{:.4g}".format) + said


def sentences_of(fit: "Fit") -> list[str]:
    """The sentences of a fit.

    Args:
        fit: The fit.
    """
    design, traffic = fit.design, fit.traffic
    what = {"posterior": "Posterior", "ml": "Maximum likelihood", "reml": "REML"}[fit.estimate]
    link = LINKS.get(design.family, "log")
    fitted = [name for name in fit.clients if name not in fit.added]
    rows = sum(design.rows[name] - design.dropped.get(name, 0) for name in fitted)
    called = design.client or "site"
    sites = f"{len(fitted)} {called if len(fitted) == 1 else plural(called)}"
    first = f"{what} of {design.text}, {design.family} with {link} link; {sites}, "
    said = [first + f"{rows} rows."]
    if design.outcome_levels is not None:
        no, event = design.outcome_levels
        name = design.formula.outcome.expressions[0]
        said.append(f"The event is {name} = {_shown(event)} (the other value is {_shown(no)}).")
    said += [*missing_values(design), *_traffic(traffic, fit.method), *_trust(fit), *fit.notes]
    if fit.added:
        said.append(
            f"Added without a refit: {', '.join(fit.added)}; the shared terms do not know their "
            "rows."
        )
    return [one for one in said if one]


def plural(word: str) -> str:
    """More than one of something.

    Args:
        word: The thing.

    Example:
        >>> plural("county"), plural("clinic"), plural("branch"), plural("bay")
        ('counties', 'clinics', 'branches', 'bays')
    """
    if word[-1:] == "y" and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"


def _shown(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return repr(int(value)) if whole and isinstance(value, float) else repr(value)


def missing_values(design: Design) -> list[str]:
    """In words: rows that were dropped, and values that were filled in.

    Args:
        design: The design.
    """
    gone = {site: count for site, count in design.dropped.items() if count}
    each = ", ".join(f"{site} {count} of {design.rows[site]}" for site, count in gone.items())
    if design.missing == "drop":
        lost = f"Rows dropped because of missing values: {each}."
        return [lost if gone else "No row has missing values."]
    needed = ", ".join(design.uses.needed)
    said = [f"Rows dropped because of missing values of {needed}: {each}."] if gone else []
    filled = {site: count for site, count in design.filled.items() if count}
    if not filled:
        return said or ["No value is missing."]
    each = ", ".join(f"{site} {count}" for site, count in filled.items())
    with_ = ", with an indicator of each column" if design.missing == "indicator" else ""
    return [
        *said,
        f"Missing values filled in by the mean of all sites or the most frequent level{with_}: "
        f"{each}.",
    ]


def _traffic(traffic: dict, method: str) -> list[str]:
    if not traffic:
        return []
    asked = f" and {traffic['questions']} questions" if traffic.get("questions") else ""
    sums = {
        "marginal": "its log-likelihood with first and second derivatives, as terms of sums",
        "fedpop": "gradients of its log-likelihood",
        "fald": "parameters after local steps",
    }[method]
    return [
        f"{traffic['rounds']} rounds{asked}; each site received {traffic['bytes_down'] / 1e3:.1f} "
        f"kB and sent {traffic['bytes_up'] / 1e3:.1f} kB: counts, levels and moments of its "
        f"columns, and {sums}. No row left a site."
    ]


def _trust(fit: "Fit") -> list[str]:
    known = fit.found.diagnostics
    said = []
    if known.get("separated"):
        said.append(
            "The likelihood has NO maximum, some columns predict the outcome without error: do not "
            "use estimates and standard errors of these terms."
        )
    elif known.get("settled") is True:
        said.append("The maximum was found.")
    elif known.get("settled") is False:
        said.append("The maximum was NOT found: do not use these numbers.")
    k_hat, ess = known.get("k_hat"), known.get("ess")
    if k_hat is not None:
        words = (
            "reliable"
            if k_hat <= GOOD_K
            else "good enough"
            if k_hat <= HIGHEST_K
            else "NOT reliable: intervals may be too short"
        )
        said.append(f"The posterior's weights are {words} (k-hat {k_hat:.2f}, up to 0.7 is good).")
    if ess is not None:
        few = "; few: take the ends of intervals as guesses" if ess < FEW else ""
        said.append(f"They are worth {ess:.0f} independent draws{few}.")
    if "r_hat" in known:
        said.append(f"R-hat is at most {known['r_hat']:.3f}; up to 1.05 is good.")
    return said
