"""Formulas as in lme4: an outcome, fixed effects, offsets and bar terms.

The fixed part and the inside of a bar term are formulaic's; bar terms, `offset(...)` and outcomes
of counts are found here, so that errors can point at their position.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

OPENING, CLOSING = "([{", ")]}"
_NAME = r"([^\W\d][\w.]*|`[^`]+`)"
_GROUP = re.compile(rf"^\s*{_NAME}\s*(?:([/:])\s*{_NAME}\s*)?$")
_POWER = re.compile(rf"{_NAME}\s*(?:\^|\*\*)\s*(\d+)")
_CALL = re.compile(r"^\s*(cbind|p)\s*\(")


class Outcome(NamedTuple):
    """The left-hand side.

    Attributes:
        kind: "plain" for one expression, "cbind" for counts of successes and failures, "p" for
            successes and totals.
        expressions: One expression, or two.
    """

    kind: Literal["plain", "cbind", "p"]
    expressions: tuple[str, ...]


class Bar(NamedTuple):
    """A random-effect term, `(terms | group)`.

    Attributes:
        text: As it is written.
        terms: The text to the left of the bar.
        group: The name of the group.
        within: The name of the group that it is nested in, of `outer:group`; None where it is none.
        correlated: False for `||`.
    """

    text: str
    terms: str
    group: str
    within: str | None
    correlated: bool


class Formula(NamedTuple):
    """A formula in its parts.

    Attributes:
        text: As it was written.
        outcome: The left-hand side.
        fixed: The fixed effects, as formulaic reads them.
        offsets: Expressions that are added to the linear predictor without a coefficient.
        bars: Random-effect terms, one for each group.
    """

    text: str
    outcome: Outcome
    fixed: str
    offsets: tuple[str, ...]
    bars: tuple[Bar, ...]


def parse(text: str) -> Formula:
    """The parts of a formula.

    Args:
        text: The formula, e.g. "ill ~ age + sex + (1 + age | hospital)".

    Returns:
        The parts. `(1 | a/b)` becomes `(1 | a)` and `(1 | a:b)`.

    Raises:
        ValueError: The formula is not well formed; the message points at the position.

    Example:
        >>> found = parse("ill ~ age + offset(log(days)) + (1 + age || hospital)")
        >>> found.outcome.expressions, found.fixed.split(), found.offsets
        (('ill',), ['age'], ('log(days)',))
        >>> found.bars[0].terms, found.bars[0].group, found.bars[0].correlated
        ('1 + age', 'hospital', False)
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            'a formula is a text such as "ill ~ age + (1 | hospital)", got ' + repr(text)
        )
    _check_brackets(text)
    at = [index for index, _ in _top_level(text, "~")]
    if len(at) != 1:
        where = at[1] if at else len(text)
        problem(text, where, "a formula has one ~, between the outcome and its predictors")
    left, right = text[: at[0]], text[at[0] + 1 :]
    begin = at[0] + 1
    fixed, offsets, bars = list(right), [], []
    for sign, start, end in _pieces(right):
        piece = right[start:end].strip()
        shift = begin + start + len(right[start:end]) - len(right[start:end].lstrip())
        is_bar = _is_enclosed(piece) and any(_top_level(piece[1:-1], "|"))
        is_offset = piece.startswith("offset(") and _is_enclosed(piece[len("offset") :])
        if not (is_bar or is_offset):
            for position, _ in _top_level(piece, "|"):
                problem(text, shift + position, "a bar term stands in brackets: (1 | hospital)")
            _refuse_hidden(text, piece, shift)
            continue
        if sign == "-":
            problem(text, shift, "bar terms and offsets are added, not taken away")
        fixed[max(start - 1, 0) : end] = " " * (end - max(start - 1, 0))
        if is_bar:
            bars += _bars(text, piece, shift)
        else:
            offsets.append(piece[len("offset(") : -1].strip())
    return Formula(text, _outcome(text, left), "".join(fixed), tuple(offsets), tuple(bars))


def problem(text: str, position: int, why: str) -> None:
    """Raise an error that points at a position of the formula.

    Args:
        text: The formula.
        position: Index of the character.
        why: The mistake, and what is allowed.

    Example:
        >>> problem("y ~ x", 2, "here")
        Traceback (most recent call last):
        ...
        ValueError: here
            y ~ x
              ^
    """
    line = text.replace("\n", " ")
    raise ValueError(f"{why}\n    {line}\n    {' ' * min(position, len(line))}^")


def _check_brackets(text: str) -> None:
    stack: list[tuple[str, int]] = []
    for index, character in _unquoted(text):
        if character in OPENING:
            stack.append((character, index))
        elif character in CLOSING:
            if not stack or OPENING.index(stack[-1][0]) != CLOSING.index(character):
                problem(text, index, f"this {character} closes nothing")
            stack.pop()
    if stack:
        problem(text, stack[-1][1], f"this {stack[-1][0]} is not closed")


def _unquoted(text: str) -> Iterator[tuple[int, str]]:
    """Characters outside of quotation marks and backticks."""
    quote = ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        else:
            yield index, character
    if quote:
        problem(text, text.rindex(quote), f"this {quote} is not closed")


def _top_level(text: str, wanted: str) -> list[tuple[int, str]]:
    """Positions of some characters outside of all brackets."""
    found, depth = [], 0
    for index, character in _unquoted(text):
        if character in wanted and depth == 0:
            found.append((index, character))
        depth += (character in OPENING) - (character in CLOSING)
    return found


def _pieces(text: str) -> list[tuple[str, int, int]]:
    """The summands of a right-hand side: sign, start and end."""
    signs = [
        (index, sign)
        for index, sign in _top_level(text, "+-")
        if not text[:index].rstrip().endswith(("*", "/", ":", "^", "+", "-"))
    ]
    starts = [("+", 0), *((sign, index + 1) for index, sign in signs)]
    ends = [*(index for index, _ in signs), len(text)]
    return [
        (sign, start, end)
        for (sign, start), end in zip(starts, ends, strict=True)
        if text[start:end].strip()
    ]


def _is_enclosed(piece: str) -> bool:
    """Whether one pair of brackets encloses the whole piece."""
    if not (piece.startswith("(") and piece.endswith(")")):
        return False
    depth = 0
    for index, character in _unquoted(piece):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return index == len(piece) - 1
    return False


def _refuse_hidden(text: str, piece: str, shift: int) -> None:
    """An error for bar terms and offsets inside of other terms."""
    for index, character in _unquoted(piece):
        if character == "|":
            problem(
                text,
                shift + index,
                "a bar term is joined to the others by +, not inside of another term",
            )
    hidden = re.search(r"\boffset\s*\(", piece)
    if hidden:
        problem(text, shift + hidden.start(), "offset(...) is joined to the others by +")
    power = _POWER.fullmatch(piece)
    if power:
        name, exponent = power.groups()
        problem(text, shift, f"{piece} is {name} alone in a formula; write I({name}**{exponent})")
    if "%in%" in piece:
        problem(text, shift + piece.index("%in%"), "write x:z for x %in% z")
    if re.fullmatch(r"\.", piece):
        problem(
            text,
            shift,
            "'.' would take in columns such as ids and dates: name the columns of the model",
        )


def _bars(text: str, piece: str, shift: int) -> list[Bar]:
    inside = piece[1:-1]
    bars = [index for index, _ in _top_level(inside, "|")]
    double = len(bars) == 2 and bars[1] == bars[0] + 1
    if len(bars) > 1 and not double:
        problem(text, shift + 1 + bars[1], "a random-effect term has one bar: (1 + x | group)")
    terms, right = inside[: bars[0]].strip(), inside[bars[-1] + 1 :]
    if not terms:
        problem(text, shift + 1, "what varies between groups is missing, e.g. (1 | group)")
    found = _GROUP.match(right)
    if found is None:
        problem(
            text,
            shift + 2 + bars[-1],
            "to the right of the bar stands a column, or outer/inner for groups inside of groups; "
            "a name with blanks or other signs stands in backticks",
        )
        raise AssertionError
    first, joint, second = (part and part.strip("`") for part in found.groups())
    if joint is None:
        return [Bar(piece, terms, first, None, not double)]
    nested = Bar(piece, terms, second, first, not double)
    return [nested] if joint == ":" else [Bar(piece, terms, first, None, not double), nested]


def _outcome(text: str, left: str) -> Outcome:
    if not left.strip():
        problem(text, 0, "the outcome is missing: it stands to the left of ~")
    call = _CALL.match(left)
    if call is None:
        return Outcome("plain", (left.strip(),))
    inside = left[call.end() : left.rstrip().rindex(")")]
    commas = [index for index, _ in _top_level(inside, ",")]
    if len(commas) != 1:
        kind = call.group(1)
        second = "failures" if kind == "cbind" else "totals"
        problem(text, call.start(1), f"{kind} takes two columns: {kind}(successes, {second})")
    parts = inside[: commas[0]].strip(), inside[commas[0] + 1 :].strip()
    return Outcome("cbind" if call.group(1) == "cbind" else "p", parts)
