"""Fingerprints of functions: they show whether a pipeline's code has changed since a plan."""

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
    """Return a hash of the function's source: the same in every process, at any address."""
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
        kind = type(function)
        if kind.__module__ == "builtins":
            return sha256(_text(function).encode())
        return sha256(f"{function_fingerprint(kind)} {_text(getattr(function, '__dict__', {}))}".encode())


def logic_of(function: object) -> str:
    """Return a hash of what the function does, including the user's own functions and constants that it uses.

    It stays the same if only comments, layout, annotations, docstrings or the function's name change, and with another
    version of Python or of a library.
    """
    return sha256(repr(_logic(function, set())).encode())


def _logic(value: object, visited: set[int]) -> object:
    if id(value) in visited:
        return "again"
    if isinstance(value, functools.partial):
        is_tidegates = getattr(value.func, "__module__", "").partition(".")[0] == "tidegate"
        # The logic of tidegate's own functions is known by their names: a new version must not count as a change.
        function = value.func.__qualname__ if is_tidegates else _logic(value.func, visited)
        return ["partial", function, _constant_text(value.args), _constant_text(value.keywords)]
    if isinstance(value, types.MethodType):
        return [_logic(value.__func__, visited), _constant_text(getattr(value.__self__, "__dict__", {}))]
    value = inspect.unwrap(value) if callable(value) else value
    if not isinstance(value, types.FunctionType):
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, types.FunctionType):
            return [_logic(call, visited), _constant_text(getattr(value, "__dict__", {}))]
        return function_fingerprint(value)
    visited.add(id(value))
    tree = _tree(value)
    if tree is not None:
        text = ast.unparse(tree)
    else:
        text = _compiled(value.__code__).hex()
    assigned = _global_names(tree) if tree is not None else set()
    names = sorted(set(_names(value.__code__)) - assigned)
    used = _enclosed(value) | {name: value.__globals__[name] for name in names if name in value.__globals__}
    defaults = [_constant_text(value.__defaults__), _constant_text(value.__kwdefaults__)]
    return [text, defaults, [[name, _used(used[name], names, visited)] for name in sorted(used)]]


def _global_names(tree: ast.AST) -> set[str]:
    """Return the names that the function declares as `global`."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _enclosed(function: types.FunctionType) -> dict[str, object]:
    """Return the variables of enclosing functions that it uses."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable is not set yet
            values[name] = cell.cell_contents
    return values


def _used(value: object, names: Sequence[str], visited: set[int]) -> object:
    """Describe a value that a function uses. None for values of libraries, and those that are no constants."""
    if isinstance(value, types.ModuleType):
        if not _is_users(value):
            return None
        members = {name: vars(value)[name] for name in names if name in vars(value)}
        return [[name, _used(members[name], names, visited)] for name in sorted(members) if members[name] is not value]
    if isinstance(value, types.FunctionType | functools.partial | types.MethodType):
        if not _is_users(inspect.getmodule(value)):
            return None
        return _logic(value, visited)
    return _constant_text(value)


def _is_users(module: types.ModuleType | None) -> bool:
    """Return whether a module is the user's, not of Python, a library or tidegate, which change with their versions."""
    if module is None or module.__name__.partition(".")[0] == "tidegate":
        return module is None
    path = getattr(module, "__file__", None)
    return path is not None and not any(Path(path).is_relative_to(folder) for folder in _LIBRARIES)


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names and attributes in the function and in its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _constant_text(value: object) -> str | None:
    """Return a constant as text; None for any other value."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        texts = [_constant_text(inner) for inner in value]
        return f"{type(value).__name__} {sorted(map(str, texts)) if isinstance(value, set | frozenset) else texts}"
    if isinstance(value, dict):
        return f"dict {[[_constant_text(key), _constant_text(inner)] for key, inner in value.items()]}"
    return None


def _tree(function: types.FunctionType) -> ast.AST | None:
    """Parse the function, without its name, decorators, annotations and docstrings; None if it is not clear which."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    kind = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    matches = []
    for node in ast.walk(parsed):
        if isinstance(node, kind) and _may_be(node, function):
            matches.append(node)
    if len(matches) == 1 or (matches and kind is ast.FunctionDef):
        tree: ast.AST = _StripInert().visit(matches[0])
        return tree
    return None


def _may_be(node: ast.Lambda | ast.FunctionDef, function: types.FunctionType) -> bool:
    """Return whether the node has the function's name, if it has one, and its parameters."""
    if isinstance(node, ast.FunctionDef) and node.name != function.__name__:
        return False
    return [argument.arg for argument in _arguments(node.args)] == _parameters(function)


def _arguments(args: ast.arguments) -> list[ast.arg]:
    variadic = [argument for argument in (args.vararg, args.kwarg) if argument is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *variadic]


def _parameters(function: types.FunctionType) -> list[str]:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return list(code.co_varnames[:count])


class _StripInert(ast.NodeTransformer):
    """Removes everything from code that has no effect."""

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
        if node.value is not None:
            return ast.copy_location(ast.Assign([node.target], node.value), node)
        return ast.Pass()


def _compiled(code: types.CodeType) -> bytes:
    """Return instructions, names and constants: for a function without source, such as one typed at a prompt."""
    constants = []
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            constants.append(_compiled(c))
        else:
            constants.append(_text(c).encode())
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *constants])


def _text(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
