"""What a function is made of, so that a plan can tell whether its code has changed since."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidegate.records.codec import sha256

__all__ = ["function_fingerprint", "logic_of"]


def function_fingerprint(function: object) -> str:
    """A hash of what the function is made of: the same in every process, wherever it lies there."""
    if isinstance(function, functools.partial):
        return sha256(
            f"{function_fingerprint(function.func)} {_text(function.args)} {_text(function.keywords)}".encode()
        )
    try:
        return sha256(inspect.getsource(function).encode())  # type: ignore[arg-type]
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is not None:
            return sha256(_compiled(code))
        of = type(function)
        if of.__module__ == "builtins":
            return sha256(_text(function).encode())
        return sha256(f"{function_fingerprint(of)} {_text(getattr(function, '__dict__', {}))}".encode())


def logic_of(function: object) -> str:
    """A hash of what the function does, with the functions and constants of the user's own that it uses.

    It stays the same if only comments, layout, annotations, docstrings or the function's name change, and with another
    version of Python or of a library.
    """
    return sha256(repr(_logic(function, set())).encode())


def _logic(value: object, met: set[int]) -> object:
    if id(value) in met:
        return "again"
    if isinstance(value, functools.partial):
        return ["partial", _logic(value.func, met), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, types.MethodType):
        return [_logic(value.__func__, met), _plain(getattr(value.__self__, "__dict__", {}))]
    value = inspect.unwrap(value) if callable(value) else value
    if not isinstance(value, types.FunctionType):
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, types.FunctionType):
            return [_logic(call, met), _plain(getattr(value, "__dict__", {}))]
        return function_fingerprint(value)
    met.add(id(value))
    tree = _tree(value)
    text = ast.unparse(tree) if tree is not None else _compiled(value.__code__).hex()
    assigned = (
        {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names} if tree else set()
    )
    names = sorted(set(_names(value.__code__)) - assigned)
    used = _enclosed(value) | {name: value.__globals__[name] for name in names if name in value.__globals__}
    given = [_plain(value.__defaults__), _plain(value.__kwdefaults__)]
    return [text, given, [[name, _used(used[name], names, met)] for name in sorted(used)]]


def _enclosed(function: types.FunctionType) -> dict[str, object]:
    """What it uses of the functions around it."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing is in it yet
            found[name] = cell.cell_contents
    return found


def _used(value: object, names: Sequence[str], met: set[int]) -> object:
    """What of a thing that a function uses is the user's own."""
    if isinstance(value, types.ModuleType):
        if not _is_users(value):
            return None
        inside = {name: vars(value)[name] for name in names if name in vars(value)}
        return [[name, _used(inside[name], names, met)] for name in sorted(inside) if inside[name] is not value]
    if isinstance(value, types.FunctionType | functools.partial | types.MethodType):
        return _logic(value, met) if _is_users(inspect.getmodule(value)) else None
    return _plain(value)


def _is_users(module: types.ModuleType | None) -> bool:
    """Whether it is neither Python's, a library's nor tidegate's: those change by versions."""
    if module is None or module.__name__.partition(".")[0] == "tidegate":
        return module is None
    path = getattr(module, "__file__", None)
    return path is not None and not any(Path(path).is_relative_to(each) for each in _LIBRARIES)


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names and attributes in the function, also in those that are inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _plain(value: object) -> str | None:
    """A constant, as text; None: it is none."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        each = [_plain(inner) for inner in value]
        return f"{type(value).__name__} {sorted(map(str, each)) if isinstance(value, set | frozenset) else each}"
    if isinstance(value, dict):
        return f"dict {[[_plain(key), _plain(inner)] for key, inner in value.items()]}"
    return None


def _tree(function: types.FunctionType) -> ast.AST | None:
    """What the function is, without its name, decorators, annotations and docstrings. None: nobody can tell."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    kind = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    found = [
        node
        for node in ast.walk(parsed)
        if isinstance(node, kind)
        and [each.arg for each in _arguments(node.args)] == _parameters(function)
        and (isinstance(node, ast.Lambda) or node.name == function.__name__)
    ]
    return _Bare().visit(found[0]) if len(found) == 1 or (found and kind is ast.FunctionDef) else None


def _arguments(args: ast.arguments) -> list[ast.arg]:
    more = [each for each in (args.vararg, args.kwarg) if each is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *more]


def _parameters(function: types.FunctionType) -> list[str]:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return list(code.co_varnames[:count])


class _Bare(ast.NodeTransformer):
    """Takes from code what does nothing."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self.depth == 0:
            node.name, node.decorator_list = "_", []
        node.returns = None
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value is not None else ast.Pass()


def _compiled(code: types.CodeType) -> bytes:
    """For a function without source, as one typed at a prompt: its instructions, names and constants."""
    constants = [_compiled(c) if isinstance(c, types.CodeType) else _text(c).encode() for c in code.co_consts]
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *constants])


def _text(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
