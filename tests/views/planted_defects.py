"""Defects that were found by hand once, planted again: `make views` must find each within one short life."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from tidegate.errors import TidegateError
from tidegate.history import selection, table, without_values
from tidegate.ui import api

__all__ = ["PLANTED", "Planted"]

Patches = Iterator[Any]


def _a_swap_of_everything_goes_back_to_nothing() -> Patches:
    """Checkpoint 0 is taken for no checkpoint, in what is written and in what is read."""
    real = table.row_of

    def row_of(*given: Any, **named: Any) -> Any:
        row = real(*given, **named)
        replaced = msgspec.structs.replace if isinstance(row, msgspec.Struct) else dataclasses.replace
        return replaced(row, back_to=row.back_to or None)  # type: ignore[type-var]

    yield mock.patch.object(table, "row_of", row_of)
    yield mock.patch.object(selection, "_as_written_today", lambda rows: rows)


def _a_manifest_tells_the_least_and_greatest_value_of_each_column() -> Patches:
    yield mock.patch.object(api, "manifest_without_rows", msgspec.to_builtins)


def _an_error_quotes_the_row_that_it_is_about() -> Patches:
    real = TidegateError.__init__

    def init(self: TidegateError, what: str, **named: Any) -> None:
        real(self, f"{what} {named.get('quoted', '')}".strip(), **named)

    yield mock.patch.object(TidegateError, "__init__", init)


def _a_key_of_the_input_is_told_to_everybody() -> Patches:
    yield mock.patch.object(without_values, "drift_without_rows", lambda drift: drift)


class Planted(NamedTuple):
    patches: Any
    acts: tuple[str, ...]
    """What must happen before it shows."""
    found: str
    """In what is told then."""

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


PLANTED = {
    "B1": Planted(_a_swap_of_everything_goes_back_to_nothing, ("passes", "backfills_everything", "swaps"), "raises"),
    "C1": Planted(_a_manifest_tells_the_least_and_greatest_value_of_each_column, ("passes",), "quotes a row"),
    "C2": Planted(_an_error_quotes_the_row_that_it_is_about, ("a_record_is_malformed",), "quotes a row"),
    "C3": Planted(_a_key_of_the_input_is_told_to_everybody, ("passes",), "quotes a row"),
}
"""By their numbers in the list of defects."""
