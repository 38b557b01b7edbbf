"""What a cause says of PostgreSQL's errors about data: never the value, in whatever language and form."""

from __future__ import annotations

import pytest

from tidegate.postgres.connection import _without_values


@pytest.mark.parametrize(
    "said",
    [
        'invalid input syntax for type integer: "SECRET-77"',
        'invalid input value for enum mood: "SECRET-77',
        "ungültige Eingabesyntax für Typ integer: »SECRET-77«",
        "syntaxe en entrée invalide pour le type integer : « SECRET-77 »",
        'value "SECRET-77" is out of range for type integer',
    ],
)
def test_an_error_about_data_is_told_without_the_value(said: str) -> None:
    assert "SECRET-77" not in _without_values(said, "22P02")
    assert _without_values(said, "22P02").endswith("…")


def test_an_error_without_a_value_is_told_whole() -> None:
    assert _without_values("division by zero", "22012") == "division by zero"
