"""The needs of a formula's terms from a table: columns, factor levels, means and scales.

Only functions of a fixed list are evaluated: a formula that comes from elsewhere runs no other code
at a site.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from covey.fitting.formula import Formula, problem

NUMPY = {
    "abs": np.abs,
    "clip": np.clip,
    "cos": np.cos,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
    "where": np.where,
}
SCALES = ("scale", "center", "standardize")
CONTRASTS = ("Treatment", "Sum", "Helmert", "Diff", "Poly")
REFUSED = {
    "poly": "write the powers: x + I(x**2)",
    "bs": "give knots=[...], lower_bound= and upper_bound=",
    "cs": "use bs(x, knots=[...], lower_bound=, upper_bound=)",
    "cr": "use bs(x, knots=[...], lower_bound=, upper_bound=)",
    "cc": "use bs(x, knots=[...], lower_bound=, upper_bound=)",
    "lag": "make the column in the tables",
    "hashed": "use C(x)",
}
_IN_R = {  # functions of R, and what a formula has in their place
    "factor": "write C(x)",
    "relevel": "write C(x, Treatment('a'))",
    "ns": "use bs(x, knots=[...], lower_bound=, upper_bound=)",
    "rcs": "use bs(x, knots=[...], lower_bound=, upper_bound=)",
    "ifelse": "write where(x > 0, 1, 0)",
    "cut": "make the column in the tables",
}
_HINTS = {  # of formulaic's errors
    "Unknown operator": "; arithmetic and comparisons stand in I(...), as in I(x > 0)",
    "Missing operator": "; a column whose name has blanks or other signs stands in backticks",
}
_FIXED_SPLINE = {"knots", "lower_bound", "upper_bound"}
_PLAIN = re.compile(r"[^\W\d][\w.]*|`[^`]+`")
_NODES = (
    ast.Expression,
    ast.Name,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Call,
    ast.keyword,
    ast.List,
    ast.Tuple,
    ast.Attribute,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)


class Needs(NamedTuple):
    """The needs of a formula from a table.

    Attributes:
        alone: Columns that stand alone as a factor: numbers, or words, which are then levels.
        inside: Columns inside of expressions, which must be numbers there.
        factors: For each `C(...)`, the expression of its levels.
        scaled: For each `scale(...)` and `center(...)`, the expression that is scaled.
    """

    alone: tuple[str, ...]
    inside: tuple[str, ...]
    factors: dict[str, str]
    scaled: dict[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        within = [name for inner in self.factors.values() for name in names_of(inner)]
        return tuple(dict.fromkeys([*self.alone, *self.inside, *within]))


def needs_of(formula: Formula) -> Needs:
    """The needs of the right-hand side of a formula from a table.

    Args:
        formula: The formula.

    Returns:
        Columns, factors and scaled expressions.

    Raises:
        ValueError: The formula is not well formed, or has a transform that needs pooled rows; the
            message points at the position.

    Example:
        >>> from covey.fitting.formula import parse
        >>> found = needs_of(parse("y ~ sex + scale(log(chol)) + C(cp) + (1 | site)"))
        >>> found.alone, found.inside, found.factors, found.scaled
        (('sex',), ('chol',), {'C(cp)': 'cp'}, {'scale(log(chol))': 'log(chol)'})
    """
    alone: list[str] = []
    inside: list[str] = []
    factors: dict[str, str] = {}
    scaled: dict[str, str] = {}
    for part in (formula.fixed, *(bar.terms for bar in formula.bars)):
        for expression, is_name in _factors(formula, part):
            if is_name:
                alone.append(expression)
                continue
            tree = checked(formula, expression)
            if isinstance(tree, ast.Call) and _name(tree.func) == "C":
                factors[expression] = _factor_argument(formula, tree, expression)
                continue
            _find_scales(formula, tree, scaled)
            inside += _names(tree)
    for expression in formula.offsets:
        tree = checked(formula, expression)
        if any(_name(node.func) in (*SCALES, "C", "bs") for node in _calls(tree)):
            position = formula.text.find(expression)
            problem(
                formula.text, position, "an offset is added as it is: scale() and C() are for terms"
            )
        inside += _names(tree)
    for outcome in formula.outcome.expressions:
        checked(formula, outcome)
    return Needs(tuple(dict.fromkeys(alone)), tuple(dict.fromkeys(inside)), factors, scaled)


def names_of(expression: str) -> tuple[str, ...]:
    """The columns that an expression names, in order.

    Args:
        expression: The expression, or the name of a column with any characters in backticks.

    Example:
        >>> names_of("log(chol + 1) / age"), names_of("`blood pressure`")
        (('chol', 'age'), ('blood pressure',))
    """
    if is_name(expression):
        return (expression.strip("` "),)
    return tuple(dict.fromkeys(_names(ast.parse(expression, mode="eval").body)))


def is_name(expression: str) -> bool:
    """Whether an expression is the name of a column: a word, also with dots, or in backticks.

    Args:
        expression: The expression.

    Example:
        >>> is_name("blood.pressure"), is_name("`a b`"), is_name("log(a)")
        (True, True, False)
    """
    return bool(_PLAIN.fullmatch(expression.strip()))


def evaluate(expression: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The values of an expression, one per row.

    Args:
        expression: An expression that `needs_of` has checked.
        columns: Values of the columns.

    Example:
        >>> evaluate("log(a) * 2", {"a": np.array([1.0])}).tolist()
        [0.0]
    """
    if is_name(expression):
        return np.asarray(columns[names_of(expression)[0]])
    known = {**NUMPY, "I": lambda value: value, "np": _Numpy()}
    code = compile(ast.parse(expression, mode="eval"), "<formula>", "eval")
    size = len(next(iter(columns.values()))) if columns else 0
    with np.errstate(all="ignore"):
        value = eval(code, {"__builtins__": {}}, {**known, **columns})  # noqa: S307 checked before
    return np.broadcast_to(np.asarray(value), (size,))


class _Numpy:
    """NumPy's functions of the list."""

    def __getattr__(self, name: str):
        return NUMPY[name]


def checked(formula: Formula, expression: str) -> ast.expr:
    """An expression as a tree, after a check that it only uses what is allowed.

    Args:
        formula: The formula that it is part of.
        expression: The expression.
    """
    position = max(formula.text.find(expression), 0)
    if is_name(expression):
        return ast.Name(names_of(expression)[0])
    if "`" in expression:
        problem(
            formula.text, position, "a column inside of a function needs a plain name; rename it"
        )
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        problem(
            formula.text, position + (error.offset or 1) - 1, f"{expression!r} is not well formed"
        )
        raise
    called = {id(node.func) for node in _calls(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            problem(formula.text, position, f"{ast.unparse(node)!r} cannot stand in a formula")
        if isinstance(node, ast.Attribute):
            _check_attribute(formula, node, position, is_called=id(node) in called)
        if isinstance(node, ast.BitXor):
            problem(formula.text, position, f"a power is written **, as in I(x**2): {expression}")
        if isinstance(node, ast.Call):
            _check_call(formula, node)
    return tree


def spline_middles(formula: Formula) -> dict[str, float]:
    """For each column of a spline, a value between its bounds.

    Args:
        formula: The formula.
    """
    found = {}
    for part in (formula.fixed, *(bar.terms for bar in formula.bars)):
        for expression, is_column in _factors(formula, part):
            for node in [] if is_column else _calls(ast.parse(expression, mode="eval").body):
                if _name(node.func) == "bs":
                    ends = [
                        float(ast.literal_eval(word.value))
                        for word in node.keywords
                        if word.arg in ("lower_bound", "upper_bound")
                    ]
                    found |= dict.fromkeys(_names(node.args[0]), sum(ends) / 2)
    return found


def context() -> dict[str, object]:
    """Functions beyond formulaic's own that a formula can call."""
    return {**NUMPY}


def _check_attribute(
    formula: Formula, node: ast.Attribute, position: int, *, is_called: bool
) -> None:
    of_numpy = _name(node.value) == "np"
    if of_numpy and node.attr in NUMPY:
        return
    why = ": a column inside of a function needs a plain name; rename it"
    if of_numpy or is_called:
        why = f" is not known in a formula; allowed are np.{', np.'.join(NUMPY)}"
    problem(formula.text, position, f"{ast.unparse(node)}{why}")


def _check_call(formula: Formula, node: ast.Call) -> None:
    name = _name(node.func)
    if isinstance(node.func, ast.Attribute):
        return
    name = ast.unparse(node.func) if name is None else name
    position = max(formula.text.find(f"{name}("), 0)
    given = {word.arg for word in node.keywords}
    if name == "bs" and given >= _FIXED_SPLINE:
        return
    if name in REFUSED:
        problem(
            formula.text,
            position,
            f"{name}() would be fitted to pooled rows, which nobody has; {REFUSED[name]}",
        )
    known = [*NUMPY, *SCALES, *CONTRASTS, "C", "I", "bs"]
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {near[0]}()?" if near else ""
        hint = f"; {_IN_R[name]}" if name in _IN_R else hint
        problem(formula.text, position, f"{name}() is not known in a formula{hint}")


def _find_scales(formula: Formula, tree: ast.expr, scaled: dict[str, str]) -> None:
    from formulaic.utils.code import format_expr

    for node in _calls(tree):
        name = _name(node.func)
        position = max(formula.text.find(f"{name}("), 0)
        if name == "C" or name in CONTRASTS:
            problem(formula.text, position, f"{name}() stands alone, not inside of an expression")
        if name not in SCALES:
            continue
        if len(node.args) != 1 or node.keywords:
            problem(formula.text, position, f"{name}() takes one expression: {name}(x)")
        if any(_name(inner.func) in SCALES for inner in _calls(node.args[0])):
            problem(formula.text, position, "scale() and center() cannot be nested; one is enough")
        scaled[format_expr(node)] = ast.unparse(node.args[0])


def _factor_argument(formula: Formula, tree: ast.Call, expression: str) -> str:
    if not tree.args or any(word.arg == "levels" for word in tree.keywords):
        position = max(formula.text.find(expression), 0)
        problem(
            formula.text, position, "write C(x) or C(x, Treatment('a')); levels come from the sites"
        )
    return ast.unparse(tree.args[0])


def _factors(formula: Formula, part: str) -> list[tuple[str, bool]]:
    """Expressions of the factors of a formula's part, and whether each is a column's name."""
    import formulaic
    from formulaic.errors import FormulaSyntaxError

    made: Any = formulaic  # its types do not know that a formula is made by calling the class
    try:
        terms = made.Formula(part)
    except FormulaSyntaxError as error:
        before, _, rest = str(error).partition("⧛")
        line = before.rpartition("\n")[2]
        start = formula.text.find(part)
        why = str(error).partition("\n")[0].rstrip(".").replace("insuffient", "insufficient")
        why += next((hint for begin, hint in _HINTS.items() if why.startswith(begin)), "")
        problem(formula.text, max(start, 0) + (len(line) if rest else 0), why)
        raise
    except SyntaxError as error:
        written = (error.text or part).strip()
        factor = "; a factor is C(x)" if "factor" in written else ""
        problem(
            formula.text,
            max(formula.text.find(written), 0),
            f"{written!r} is not well formed: a column whose name is a word of Python, or has "
            f"other signs than letters, digits and _, stands in backticks{factor}",
        )
        raise
    found = {
        factor.expr: factor.eval_method.value == "lookup"
        for term in terms
        for factor in term.factors
        if factor.eval_method.value != "literal"
    }
    return list(found.items())


def _calls(tree: ast.expr) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _names(tree: ast.expr) -> list[str]:
    called = {id(node.func) for node in _calls(tree)}
    spaces = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _name(node.value) == "np"
    }
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and id(node) not in called | spaces
    ]
    return [node.id for node in sorted(found, key=lambda node: getattr(node, "col_offset", 0))]


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def nearest(name: str, names: Sequence[str]) -> str:
    """A hint with the nearest known name, or nothing.

    Args:
        name: The name that is not known.
        names: Those that are.

    Example:
        >>> nearest("Cholesterol", ["age", "cholesterol"])
        "; did you mean 'cholesterol'?"
    """
    lower = {one.lower(): one for one in names}
    near = get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""
