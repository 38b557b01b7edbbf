"""Which types of PostgreSQL hold all values of another one."""

from __future__ import annotations

import pytest

from tidegate.connectors.postgres.types import fits_all


@pytest.mark.parametrize(
    ("natural", "column"),
    [
        ("smallint", "double precision"),
        ("integer", "double precision"),
        ("real", "double precision"),
        ("date", "timestamp without time zone"),
    ],
)
def test_a_column_that_has_become_wider_takes_narrow_rows(natural: str, column: str) -> None:
    assert fits_all(natural, column)


@pytest.mark.parametrize(
    ("natural", "column"),
    [("bigint", "double precision"), ("date", "timestamp with time zone"), ("double precision", "integer")],
)
def test_a_column_that_changes_values_does_not(natural: str, column: str) -> None:
    assert not fits_all(natural, column)
