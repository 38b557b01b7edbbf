"""The parts that maps and lists of `process` share: named collections of entries with fields, which may expire."""

from __future__ import annotations

import re
from collections.abc import Collection

from tidegate.connectors.schema.ddl import Column as Field
from tidegate.connectors.schema.ddl import DdlError, parse_ddl
from tidegate.operators.expiry import Expiry

__all__ = ["KeyedEntries", "field_problems", "name_problems"]


class KeyedEntries:
    """Entries with the fields of `state`, a schema in DDL."""

    state: str
    state_ttl: str | float | None
    ttl_time: str

    @property
    def expiry(self) -> Expiry:
        """When its entries expire."""
        return Expiry(self.state_ttl, self.ttl_time)

    @property
    def fields(self) -> list[Field]:
        """The fields of an entry."""
        return parse_ddl(self.state)


def name_problems(subject: str, name: object, taken: Collection[str], example: str) -> list[str]:
    """Return what is wrong with the name of a map or list. taken: the names that the state has already."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        return [f"{subject}: name it with small letters, digits and _, as in state.{example}"]
    if name in taken:
        return [f"{subject}: state.{name} exists already: rename it"]
    return []


def field_problems(subject: str, declared: KeyedEntries) -> tuple[list[str], list[str]]:
    """Return what is wrong with the fields of entries and their expiry, and the names of the fields."""
    problems = [f"{subject}: {problem}" for problem in declared.expiry.problems()]
    try:
        return problems, [field.name for field in declared.fields]
    except DdlError as error:
        return [*problems, f"{subject}: state={declared.state!r}: {error}"], []
