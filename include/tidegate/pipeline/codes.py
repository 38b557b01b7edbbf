"""What a function is made of, so that a plan can tell whether its code has changed since."""

from __future__ import annotations

import functools
import inspect
import re
import types

from tidegate.model.codec import sha256

__all__ = ["code_of"]


def code_of(function: object) -> str:
    """A hash of what the function is made of: the same in every process, wherever it lies there."""
    if isinstance(function, functools.partial):
        return sha256(f"{code_of(function.func)} {_text(function.args)} {_text(function.keywords)}".encode())
    try:
        return sha256(inspect.getsource(function).encode())  # type: ignore[arg-type]
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is not None:
            return sha256(_compiled(code))
        of = type(function)
        if of.__module__ == "builtins":
            return sha256(_text(function).encode())
        return sha256(f"{code_of(of)} {_text(getattr(function, '__dict__', {}))}".encode())


def _compiled(code: types.CodeType) -> bytes:
    """For a function without source, as one typed at a prompt: its instructions, names and constants."""
    constants = [_compiled(c) if isinstance(c, types.CodeType) else _text(c).encode() for c in code.co_consts]
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *constants])


def _text(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
