"""All ways to change one line of a module that a test should notice, found in its syntax tree.

Nothing that only people read is changed: docstrings, type hints, texts of errors and of logs.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["FUNCTIONS", "LIBRARY", "PACKAGES", "ROOT", "Change", "changes_of", "modules_of", "planted_in"]

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "include/tidegate"
PACKAGES = ("protocol", "checkpoint", "backfill", "lifecycle", "connectors", "state", "operators", "gates")
"""Those of which a sample is changed."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
OTHER_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
OTHER_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
OTHER_METHODS = {
    "greater": "greater_equal", "greater_equal": "greater", "less": "less_equal", "less_equal": "less",
    "and_": "or_", "or_": "and_",
}  # fmt: skip
"""Of Arrow."""
IN_SQL = re.compile(r"(?<= )(<=|>=|<|>|AND|OR|IS NULL|IS NOT NULL)(?=[ )\"'])")
OTHER_SQL = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "AND": "OR", "OR": "AND", "IS NULL": "IS NOT NULL",
    "IS NOT NULL": "IS NULL",
}  # fmt: skip
EMPTY = {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()", "int": "0", "str": '""', "Sequence": "()"}
"""What a function returns at the least, by the type that it declares."""
FOR_PEOPLE = re.compile(r"(^|\.)(_?log(ger)?|warnings)\.|^(print|note|warn)$")
"""Calls whose arguments only people read."""
WITHOUT_EFFECT = {"stacklevel", "indent", "max_workers", "width", "help", "expected", "quoted", "repr"}
"""Arguments that change a text, or how long something takes."""
ALWAYS_DECORATED = {
    "abstractmethod", "classmethod", "contextmanager", "dataclass", "overload", "override", "property", "setter",
    "staticmethod", "total_ordering", "wraps",
}  # fmt: skip
"""Without these a module is not imported, or nothing of it works."""


@dataclass(frozen=True)
class Change:
    """One place of a file, and what stands there in its place."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    statement: int
    """The first line of the statement that has to run; 0: it runs when the module is imported."""
    scope: tuple[int, int]
    """The lines of the function, class or module that it belongs to."""

    @property
    def package(self) -> str:
        return self.file.removeprefix(f"{LIBRARY}/").split("/")[0]

    def applied(self) -> bytes:
        source = _bytes(self.file)
        return source[: self.start] + self.text.encode() + source[self.end :]

    def compiles(self) -> bool:
        try:
            compile(self.applied(), "changed", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return True

    def diff(self) -> str:
        before, after = (each.decode().splitlines() for each in (_bytes(self.file), self.applied()))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines if line[0] != "@")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.kind})"


def modules_of(package: str = "") -> list[str]:
    """The modules of a package, or of all, as paths from the repository's root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / LIBRARY / package).rglob("*.py"))


@cache
def _bytes(file: str) -> bytes:
    return (ROOT / file).read_bytes()


@cache
def changes_of(file: str) -> tuple[Change, ...]:
    """All changes of a file. Some of them leave no Python: see `compiles`."""
    return tuple({(each.start, each.end, each.text): each for each in _Finder(file).all()}.values())


def planted_in(file: str, before: str, after: str, kind: str) -> Change:
    """A change by its text, which must occur once."""
    source = _bytes(file).decode()
    assert source.count(before) == 1, f"{file} has this {source.count(before)} times, not once: {before}"
    start = source.index(before)
    while before and after and before[0] == after[0]:
        before, after, start = before[1:], after[1:], start + 1
    line = source.count("\n", 0, start) + 1
    statement, scope = _Finder(file).place_of(line)
    at = len(source[:start].encode())
    return Change(file, line, kind, at, at + len(before.encode()), after, statement, scope)


class _Where(NamedTuple):
    statement: int
    scope: tuple[int, int]
    returns: str = ""
    """The type that the function declares to return."""


class _Finder:
    def __init__(self, file: str) -> None:
        self.file, self.source = file, _bytes(file)
        self.tree = ast.parse(self.source)
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.whole = (1, len(self.starts))

    def all(self) -> Iterator[Change]:
        yield from self._block(self.tree.body, _Where(0, self.whole), inside=False)

    def place_of(self, line: int) -> tuple[int, tuple[int, int]]:
        """The statement on a line, and the innermost function or class around it."""
        statement, scope = 0, self.whole
        nodes = list(ast.walk(self.tree))
        functions = [(each.lineno, each.end_lineno or 0) for each in nodes if isinstance(each, FUNCTIONS)]
        for node in nodes:
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                if isinstance(node, ast.ClassDef | FUNCTIONS):
                    scope = max(scope, (node.lineno, node.end_lineno or 0))
                if any(first < node.lineno <= last for first, last in functions):
                    statement = max(statement, node.lineno)
        return statement, scope

    # -- statements ---------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], where: _Where, inside: bool) -> Iterator[Change]:
        for node in body:
            here = where._replace(statement=node.lineno) if inside else where
            if isinstance(node, FUNCTIONS):
                yield from self._function(node, here)
            elif isinstance(node, ast.ClassDef):
                scope = (node.lineno, node.end_lineno or 0)
                yield from self._block(node.body, here if inside else _Where(0, scope), inside)
            elif isinstance(node, ast.Raise):
                yield self._change(node, "raise dropped", "pass", here)
            elif not _is_left_alone(node):
                yield from self._statement(node, here, inside)
                for field in ("body", "orelse", "finalbody"):
                    yield from self._block(getattr(node, field, []), where, inside)
                for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                    yield from self._block(part.body, where, inside)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, here: _Where) -> Iterator[Change]:
        scope = (node.lineno, node.end_lineno or 0)
        own = here._replace(scope=scope)
        for decorator in node.decorator_list:
            name = ast.unparse(decorator).split("(")[0].split(".")[-1]
            if name not in ALWAYS_DECORATED:
                start = self._at(decorator.lineno, decorator.col_offset) - 1
                end = self._at(decorator.end_lineno, decorator.end_col_offset)
                if self.source[start : start + 1] == b"@":
                    yield self._edit(start, end, "decorator dropped", "", own)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            yield from self._value(default, own)
        if node.name in ("__repr__", "__str__"):
            return
        returns = ast.unparse(node.returns) if node.returns else ""
        yield from self._block(node.body, _Where(0, scope, returns), inside=True)

    def _statement(self, node: ast.stmt, here: _Where, inside: bool) -> Iterator[Change]:
        match node:
            case ast.Expr(value=ast.Call() | ast.Yield() | ast.Await()) if inside:
                yield self._change(node, "call dropped", "pass", here)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.AugAssign() | ast.Delete() if inside:
                yield self._change(node, "assignment dropped", "pass", here)
            case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()) if inside:
                yield self._change(node, "assignment dropped", "pass", here)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant | ast.JoinedStr):
                yield from self._returned(value, here)
            case ast.Break():
                yield self._change(node, "break to continue", "continue", here)
            case ast.Continue():
                yield self._change(node, "continue to break", "break", here)
            case ast.If(test=test):
                yield from self._condition(test, here)
            case ast.While(test=test):
                yield self._change(test, "condition to False", "False", here)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "body", "orelse", "finalbody", "handlers", "cases", "target", "targets"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.withitem):
                    each = each.context_expr
                if isinstance(each, ast.expr):
                    yield from self._value(each, here)
        for case in getattr(node, "cases", ()):
            if case.guard is not None:
                yield from self._condition(case.guard, here)
                yield from self._value(case.guard, here)

    def _returned(self, value: ast.expr, here: _Where) -> Iterator[Change]:
        if here.returns == "bool":
            yield self._change(value, "answer reversed", f"not ({self._text(value)})", here)
            return
        empty = EMPTY.get(here.returns.split("[")[0], "None")
        if self._text(value) != empty:
            yield self._change(value, f"{empty} returned", empty, here)

    def _condition(self, test: ast.expr, here: _Where) -> Iterator[Change]:
        for text in ("True", "False"):
            yield self._change(test, f"condition to {text}", text, here)

    # -- expressions --------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, here: _Where) -> Iterator[Change]:
        """Changes of an expression, and of all that it consists of."""
        match node:
            case ast.JoinedStr() | ast.Constant(value=str()):
                start, end = self._range(node)
                for found in IN_SQL.finditer(self.source[start:end].decode()):
                    if self.source[start:end].isascii() and here.statement:
                        at = start + found.start()
                        yield self._edit(at, at + len(found[0]), "SQL", OTHER_SQL[found[0]], here)
                return
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for before, op, after in zip([left, *comparators], ops, comparators, strict=False):
                    pattern, other = OTHER_COMPARISONS[type(op)]
                    yield from self._between(before, after, rf"(?<!\w){pattern}(?!\w)", other, "comparison", here)
            case ast.BoolOp(op=op, values=[first, second, *_]):
                pattern, other = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self._between(first, second, rf"\b{pattern}\b", other, f"{pattern} to {other}", here)
            case ast.UnaryOp(op=ast.Not()):
                start, end = self._range(node)
                yield self._edit(start, end, "not dropped", f"({self.source[start + 3 : end].decode().strip()})", here)
            case ast.Constant(value=bool() as value):
                yield self._change(node, f"{value} to {not value}", str(not value), here)
            case ast.Constant(value=int() | float() as value):
                yield self._change(node, "number", str(value + 1), here)
            case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right) if not _is_text(left, right):
                pattern, other = (r"\+", "-") if isinstance(op, ast.Add) else ("-", "+")
                yield from self._between(left, right, pattern, other, "plus and minus", here)
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr() as op, left=left, right=right) if here.statement:
                pattern, other = ("&", "|") if isinstance(op, ast.BitAnd) else (r"\|", "&")
                yield from self._between(left, right, pattern, other, f"{pattern[-1]} to {other}", here)
            case ast.IfExp(test=test):
                yield from self._condition(test, here)
            case ast.Lambda(body=body):
                yield from self._value(body, here)
                return
            case ast.Call():
                yield from self._call(node, here)
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                yield from self._value(child.iter, here)
                for test in child.ifs:
                    yield from self._condition(test, here)
                    yield from self._value(test, here)
            elif isinstance(child, ast.expr):
                yield from self._value(child, here)

    def _call(self, node: ast.Call, here: _Where) -> Iterator[Change]:
        name = ast.unparse(node.func)
        if FOR_PEOPLE.search(name) or name.split(".")[-1] in _errors():
            return
        if name in OTHER_FUNCTIONS:
            yield self._change(node.func, f"{name} to {OTHER_FUNCTIONS[name]}", OTHER_FUNCTIONS[name], here)
        if isinstance(node.func, ast.Attribute) and node.func.attr in OTHER_METHODS:
            end, other = self._range(node.func)[1], OTHER_METHODS[node.func.attr]
            yield self._edit(end - len(node.func.attr), end, f"{node.func.attr} to {other}", other, here)
        before: ast.expr | ast.keyword | None = max(node.args, key=self._range, default=None)
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in WITHOUT_EFFECT and before is not None:
                yield self._edit(self._range(before)[1], self._range(keyword)[1], "argument dropped", "", here)
            before = keyword
        yield from self._value(node.func, here)
        first = 1 if name in ("cast", "isinstance", "issubclass", "TypeVar") else 0
        for argument in node.args[:1] if name in ("isinstance", "issubclass") else node.args[first:]:
            yield from self._value(argument, here)
        for keyword in node.keywords:
            if keyword.arg not in WITHOUT_EFFECT:
                yield from self._value(keyword.value, here)

    # -- places -------------------------------------------------------------------------------------------

    def _at(self, line: int | None, column: int | None) -> int:
        return self.starts[(line or 1) - 1] + (column or 0)

    def _range(self, node: ast.stmt | ast.expr | ast.keyword) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr) -> str:
        start, end = self._range(node)
        return self.source[start:end].decode()

    def _between(
        self, before: ast.expr, after: ast.expr, pattern: str, text: str, kind: str, here: _Where
    ) -> Iterator[Change]:
        start, end = self._range(before)[1], self._range(after)[0]
        found = re.search(pattern.encode(), self.source[start:end])
        if found is not None:
            yield self._edit(start + found.start(), start + found.end(), kind, text, here)

    def _change(self, node: ast.stmt | ast.expr, kind: str, text: str, here: _Where) -> Change:
        return self._edit(*self._range(node), kind, text, here)

    def _edit(self, start: int, end: int, kind: str, text: str, here: _Where) -> Change:
        line = self.source.count(b"\n", 0, start) + 1
        return Change(self.file, line, kind, start, end, text, here.statement, here.scope)


def _is_left_alone(node: ast.stmt) -> bool:
    """Whether a statement is for people, for type checkers, or declares what cannot go wrong."""
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return FOR_PEOPLE.search(ast.unparse(function)) is not None
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(each, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in nodes
    )


@cache
def _errors() -> frozenset[str]:
    """The names of the product's errors, whose arguments are texts."""
    tree = ast.parse(_bytes(f"{LIBRARY}/errors.py"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))
