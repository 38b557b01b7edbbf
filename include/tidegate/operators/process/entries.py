"""What maps and lists of `process` have alike: entries with fields that expire, under a name of their own."""

from __future__ import annotations

import re
from collections.abc import Collection

from tidegate.connectors.ddl import Column as Field
from tidegate.connectors.ddl import DdlError, parse_ddl
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
    """Return what is wrong with a name under which functions find entries. taken: the names that their state has."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        return [f"{subject}: name it with small letters, digits and _, to say state.{example}"]
    return [f"{subject}: state.{name} is something else already: rename it"] if name in taken else []


def field_problems(subject: str, declared: KeyedEntries) -> tuple[list[str], list[str]]:
    """Return what is wrong with the fields of entries and their expiry; and the fields' names."""
    problems = [f"{subject}: {problem}" for problem in declared.expiry.problems()]
    try:
        return problems, [field.name for field in declared.fields]
    except DdlError as error:
        return [*problems, f"{subject}: state={declared.state!r}: {error}"], []
