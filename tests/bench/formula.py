"""What a checkpoint costs on an object store, as a formula, and where its constants are written down."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/operations/scale.md"
STEPS = ("trigger", "jobs", "complete", "publish", "record", "retire")
TERMS = ("checkpoint", "job", "table", "source", "table and commit", "commit of the history")
"""What each constant is multiplied with: 1, J, T, S; T times the commits since a table's last log checkpoint; and those
since the history's last one."""
GROWING = {"publish": 4, "record": 5}
"""The steps that read such a log, and which of the terms is theirs."""
HEAD = ("step", *(f"per {term}" for term in TERMS))
LATENCY_S = 0.02
A_DAY = 288
"""Checkpoints: one every five minutes."""
PRICE = 0.005 / 1000
"""Dollars for a write or a listing on S3. A read costs a twelfth of that, so it is at most this."""
BYTES = "bytes of its records"


@dataclass(frozen=True)
class Shape:
    """How large a pipeline is."""

    jobs: int
    tables: int
    sources: int

    def terms(self, commits: float, of_history: float) -> tuple[float, ...]:
        return (1, self.jobs, self.tables, self.sources, self.tables * commits, of_history)


@dataclass(frozen=True)
class Constants:
    """For each step, and for the bytes: a constant per term."""

    by_step: Mapping[str, Sequence[float]]

    def of(self, step: str, shape: Shape, commits: float, of_history: float) -> float:
        return sum(a * b for a, b in zip(self.by_step[step], shape.terms(commits, of_history), strict=True))

    def requests(self, shape: Shape, commits: float = 50, of_history: float = 10) -> float:
        """Return the requests of one checkpoint. commits: since the last log checkpoint, of which there is one every
        hundred, and one every twenty in the history."""
        return sum(self.of(step, shape, commits, of_history) for step in STEPS)

    def bytes(self, shape: Shape) -> float:
        """Return the bytes of the records of one checkpoint whose every table got one file."""
        return self.of(BYTES, shape, 0, 0)

    def to_json(self) -> dict[str, list[float]]:
        return {step: list(constants) for step, constants in self.by_step.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Sequence[float]]) -> Constants:
        return cls({step: tuple(constants) for step, constants in found.items()})


def fit(counted: Mapping[Shape, Sequence[Mapping[str, int]]]) -> Constants:
    """Return the constants that come nearest to what was counted."""
    import numpy as np

    checkpoints = [(shape, counts) for shape, rounds in counted.items() for counts in rounds]
    terms = np.array([shape.terms(counts["commits"], counts["commits"]) for shape, counts in checkpoints], dtype=float)
    by_step: dict[str, list[float]] = {}
    for step in (*STEPS, BYTES):
        used = [place for place in range(len(TERMS)) if place < 4 or place == GROWING.get(step)]
        amounts = np.array([counts[step] for _, counts in checkpoints], dtype=float)
        usual = np.ones(len(amounts), dtype=bool)
        for _ in range(2):  # the second time without checkpoints that do more, such as merge files of the history
            found, *_ = np.linalg.lstsq(terms[usual][:, used], amounts[usual], rcond=None)
            more = amounts - terms[:, used] @ found
            usual = more <= max(2 * float(np.median(np.abs(more))), 1)
        found[0] += (amounts - terms[:, used] @ found).mean()  # what they do more is spread over all
        constants = dict(zip(used, found, strict=True))
        by_step[step] = [round(float(constants.get(place, 0)), 1) + 0.0 for place in range(len(TERMS))]
    return Constants.from_json(by_step)


def difference(found: Constants, shape: Shape, counted: Sequence[Mapping[str, int]], tolerated: float) -> str:
    """Say how what was counted differs from the formula; nothing if it does not by more than is tolerated."""
    told = []
    for step in (*STEPS, BYTES):
        amount = sum(counts[step] for counts in counted) / len(counted)
        told_by = [found.of(step, shape, counts["commits"], counts["commits"]) for counts in counted]
        expected = sum(told_by) / len(counted)
        if abs(amount - expected) > max(tolerated * amount, 3):
            told.append(f"{step} {amount:.0f}, not {expected:.0f}")
    where = f"{shape.jobs} jobs, {shape.tables} tables, {shape.sources} sources"
    return f"{where}: counted {', '.join(told)}" if told else ""


def table_of(found: Constants) -> list[str]:
    """Return the constants as the document has them."""
    return table(HEAD, [[step, *(f"{value:,.1f}" for value in found.by_step[step])] for step in (*STEPS, BYTES)])


def examples_of(found: Constants) -> list[str]:
    """Return what they make of some pipelines, as the document has it."""
    head = ("jobs", "tables", "sources", "requests", "seconds at 20 ms", "dollars a day", "KB of records")
    rows = []
    for shape in (Shape(1, 1, 1), Shape(1, 10, 1), Shape(3, 10, 3), Shape(1, 100, 1)):
        requests = found.requests(shape)
        each = (requests, requests * LATENCY_S, requests * A_DAY * PRICE, found.bytes(shape) / 1000)
        rows.append([f"{shape.jobs}", f"{shape.tables:,}", f"{shape.sources}", *(f"{amount:,.0f}" for amount in each)])
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    cells = [[cell.removesuffix(".0") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def write(*tables: Sequence[str]) -> None:
    """Put tables into the document, in place of those with the same head."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for lines in tables:
        before = _table_in(text, lines[0])
        text = text.replace("\n".join(before), "\n".join(lines))
    DOCUMENT.write_text(text, encoding="utf-8")


def documented() -> Constants:
    """Return the constants that the document has."""
    lines = _table_in(DOCUMENT.read_text(encoding="utf-8"), table(HEAD, [])[0])
    rows: list[Any] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return Constants({step: tuple(float(cell.replace(",", "")) for cell in cells) for step, *cells in rows})


def _table_in(text: str, head: str) -> list[str]:
    lines = text.splitlines()
    assert lines.count(head) == 1, f"{DOCUMENT} has no table, or several, with the head {head}"
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index(head) :]))
