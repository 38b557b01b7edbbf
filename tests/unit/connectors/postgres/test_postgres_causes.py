"""What a cause says of PostgreSQL's errors about data: never the value, in whatever language and form."""

from __future__ import annotations

import pytest

from tidegate.connectors.postgres.connection import _without_values


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


@pytest.mark.parametrize("code", ["22023", "23514", "23505", "44000", "P0001", "MY001"])
@pytest.mark.parametrize(
    "context",
    [
        "PL/pgSQL function check_o() line 1 at RAISE",
        "PL/pgSQL function check_o() line 1 at RAISE\nCOPY o, line 1",
        "PL/pgSQL-Funktion check_o() Zeile 1 bei RAISE",
        "fonction PL/pgSQL check_o(), ligne 1, à RAISE",
        'PL/Python function "check_o"',
    ],
)
def test_what_the_author_of_a_trigger_has_written_is_not_told(code: str, context: str) -> None:
    """Whatever code they have chosen, and whether or not the text has quotes."""
    assert "SECRET-77" not in _without_values("o is SECRET-77", code, {"context": context, "constraint_name": "c"})
    assert _without_values("o is SECRET-77", "23514") == "a constraint, function or trigger refuses it"


@pytest.mark.parametrize("said", ['null value in column "v"', "null-Wert in Spalte »v«"])
def test_a_constraint_of_the_table_is_told_whole_since_it_quotes_only_names(said: str) -> None:
    parts = {"column_name": "v", "table_name": "t"}
    assert _without_values(said, "23502", parts) == said
    within = {"context": "PL/pgSQL function f() line 1 at SQL statement", **parts}
    assert _without_values(said, "23502", within) == said, "by a statement of a trigger"
