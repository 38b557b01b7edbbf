"""Defects that were found by hand once, planted again: `make values` must find each with one seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from tests.values.case import Case
from tidegate.connectors import declaring
from tidegate.connectors.files import export
from tidegate.delta import order_by
from tidegate.delta.files import partitions
from tidegate.operators import aggregate
from tidegate.state import keyed

__all__ = ["PLANTED", "Planted"]

Patches = Iterator[Any]


def _moments_are_exported_with_milliseconds() -> Patches:
    for name in ("_CSV", "_JSON"):
        options = getattr(export, name)
        yield mock.patch.object(export, name, {key: options[key] for key in options.keys() - export._TIMES.keys()})


def _texts_with_a_collation_are_keys() -> Patches:
    yield mock.patch.object(aggregate, "need_keys", return_value=None)
    for module in (keyed, declaring):
        yield mock.patch.object(module, "collations", return_value={})


def _nan_loses_where_arrow_settles() -> Patches:
    yield mock.patch.object(order_by, "sortable", lambda column: column)


def _the_name_of_the_folder_of_nulls_is_a_partition() -> Patches:
    yield mock.patch.object(partitions, "refuse_rows", lambda value, *_: value)


class Planted(NamedTuple):
    patches: Callable[[], Patches]
    case: Case
    found: str
    """In what is told then."""

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


def _one(seed: int, kind: str, role: str, to: str = "delta") -> Case:
    return Case.of(seed, kind, "parquet", [role], to)


PLANTED = {
    "A11": Planted(_moments_are_exported_with_milliseconds, _one(4, "moment", "row", "csv"), "read by python csv"),
    "A12": Planted(_texts_with_a_collation_are_keys, _one(63, "no case", "group"), "group-materializer-hash"),
    "A13": Planted(_nan_loses_where_arrow_settles, _one(5, "double", "upsert order"), "upsert order"),
    "A19": Planted(_the_name_of_the_folder_of_nulls_is_a_partition, _one(12, "text", "partition"), "partition"),
}
"""By their numbers in the list of defects."""
