"""The policy of a proposal: which findings make the command fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tidegate.errors import Invalid
from tidegate.proposal.report import ProposalReport
from tidegate.proposal.tables import TableDifference

__all__ = ["FORMS", "Limit", "broken_limits", "broken_table_limits", "parse_limit"]

FORMS = 'rows, "rows > 100", "rows > 0.1 %", gate, "cost > 1.5x", schema'
_LIMIT = re.compile(r"(?P<what>rows|cost)\s*>\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|x|)", re.ASCII)


@dataclass(frozen=True)
class Limit:
    """One limit, such as `rows > 0.1 %`."""

    text: str
    what: str
    most: Fraction = Fraction(0)
    unit: str = ""


def parse_limit(text: str) -> Limit:
    """Parse a limit. Raise Invalid if it has none of the forms."""
    words = text.strip().lower()
    if words in ("rows", "gate", "schema"):
        return Limit(words, words)
    found = _LIMIT.fullmatch(words)
    if found is not None and (found["what"] == "cost") == (found["unit"] == "x"):
        return Limit(words, found["what"], Fraction(found["number"]), found["unit"])
    raise Invalid(
        f"--fail-on {text!r} is not a limit",
        expected=FORMS,
        help="name one of these, in quotes if it has spaces; repeat --fail-on for several",
        reason="BAD_LIMIT",
    )


def broken_limits(report: ProposalReport, limits: Sequence[Limit]) -> list[str]:
    """Return one line for each limit that the report breaks."""
    broken = []
    for limit in limits:
        broken += list(_broken(report, limit))
    return broken


def _broken(report: ProposalReport, limit: Limit) -> Iterator[str]:
    if limit.what == "gate":
        for gate in report.gates:
            if gate.is_worse:
                yield f"gate: {gate.gate} breaks more rules, or the same ones with more rows"
    elif limit.what == "cost":
        before, after = report.seconds
        if before and Fraction(after) > limit.most * Fraction(before):
            yield f"{limit.text}: {after / before:.2f} times the seconds"
    else:
        yield from broken_table_limits(report.tables, [limit])


def broken_table_limits(tables: Mapping[str, TableDifference], limits: Sequence[Limit]) -> list[str]:
    """Return one line for each limit on rows and columns that these tables break."""
    broken = []
    for limit in limits:
        broken += list(_violations_in_tables(tables, limit))
    return broken


def _violations_in_tables(tables: Mapping[str, TableDifference], limit: Limit) -> Iterator[str]:
    if limit.what == "schema":
        for name, table in tables.items():
            if table.schema.changed:
                yield f"schema: the columns of {name} change"
    elif limit.what == "rows":
        for name, table in tables.items():
            most = limit.most / 100 * table.rows_before if limit.unit == "%" else limit.most
            if table.differing > most:
                yield f"{limit.text}: {table.differing:,} of {table.rows_before:,} rows of {name} differ"
