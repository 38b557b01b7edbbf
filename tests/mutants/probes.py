"""Which statements of the product run: each notes itself in one array of bytes, which all processes share.

A module is compiled with an assignment in front of each statement of its functions, `__reached__[17] = 1`: that costs
a tenth of what a tracer does, and works in threads and children. Lines stay where they are.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import json
import mmap
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["Reached", "note_what_is_reached", "with_probes"]

NAME = "__reached__"
FOLDER = "REACHED_LINES"
"""The variable that names the folder of the array, of the places in it, and of modules compiled with probes."""


class Reached(mmap.mmap):
    """The array. A function that is pickled with it finds a dictionary in a process that has no array."""

    def __reduce__(self) -> Any:
        return eval, ("getattr(__import__('sys').modules.get('tests.mutants.probes'), 'REACHED', None) or {}",)


REACHED: Reached | None = None


def note_what_is_reached() -> Reached:
    """From here on, each module of the packages that is imported is compiled with probes."""
    global REACHED
    folder = Path(os.environ[FOLDER])
    with (folder / "array").open("r+b") as file:
        REACHED = Reached(file.fileno(), 0)
    setattr(builtins, NAME, REACHED)  # for what runs as __main__
    _Loader.folder, _Loader.places = folder, json.loads((folder / "places.json").read_text())
    sys.meta_path.insert(0, _Finder())
    return REACHED


def with_probes(source: bytes, path: str, place: int) -> CodeType:
    """Compile a module so that each statement of a function notes its line, counted from `place` on."""
    tree = ast.parse(source)
    _probe(tree, place, inside=False)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _probe(node: ast.AST, place: int, inside: bool) -> None:
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        nodes = getattr(node, field, None)
        if not isinstance(nodes, list):
            continue
        for each in nodes:
            _probe(each, place, inside)
        if inside and field not in ("handlers", "cases"):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            documented = is_function and isinstance(nodes[0], ast.Expr) and isinstance(nodes[0].value, ast.Constant)
            nodes[:] = [
                each
                for number, statement in enumerate(nodes)
                for each in ([statement] if documented and number == 0 else [_noting(statement, place), statement])
            ]


def _noting(statement: ast.stmt, place: int) -> ast.stmt:
    target = ast.Subscript(ast.Name(NAME, ast.Load()), ast.Constant(place + statement.lineno), ast.Store())
    return ast.copy_location(ast.Assign([target], ast.Constant(1)), statement)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("tidegate."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    folder: Path
    places: dict[str, int]

    def exec_module(self, module: ModuleType) -> None:
        if self.path in self.places:
            module.__dict__[NAME] = REACHED
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the module, or read what another process has compiled: not where Python keeps it without probes."""
        before = sys.pycache_prefix
        sys.pycache_prefix = str(self.folder) if self.path in self.places else before
        try:
            return super().get_code(fullname)
        finally:
            sys.pycache_prefix = before

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        if path not in self.places:
            return super().source_to_code(data, path)
        return with_probes(bytes(data), path, self.places[path])
