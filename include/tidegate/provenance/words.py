"""The answer for people."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.provenance.explanation import CauseCheckpoint, Explanation
from tidegate.records.records import Json

__all__ = ["lines"]


def lines(answer: Explanation) -> Iterator[str]:
    """Yield the answer, line by line."""
    copies = f", {answer.copies} equal rows" if answer.copies > 1 else ""
    yield f"{answer.pipeline}, {answer.sink} as of checkpoint {answer.checkpoint}{copies}: {_row(answer.row)}"
    yield _summary(answer)
    for checkpoint in answer.checkpoints:
        yield ""
        yield from _checkpoint(answer, checkpoint)
    if answer.needs_older_state:
        yield ""
        yield (
            f"It also rests on the state as of checkpoint {answer.begins_after}, so on older input: {answer.why_older}"
        )
    yield ""
    yield "On the way:"
    for step in answer.path:
        takes = f" ← {', '.join(step.inputs)}" if step.inputs else ""
        yield f"  {step.name}{takes}: {step.kind}{f' {step.does}' if step.does else ''}"
    yield ""
    yield from _proof(answer)


def _summary(answer: Explanation) -> str:
    parts = [_count(len(answer.records), "record")]
    if answer.corrections:
        parts.append(_count(len(answer.corrections), "correction"))
    checkpoints = f" of {_count(len(answer.checkpoints), 'checkpoint')}" if answer.checkpoints else ""
    return f"It is so since checkpoint {answer.since}, because of {' and '.join(parts)}{checkpoints}."


def _checkpoint(answer: Explanation, checkpoint: CauseCheckpoint) -> Iterator[str]:
    yield f"Checkpoint {checkpoint.id}, {checkpoint.time}"
    for record in answer.records:
        if record.checkpoint == checkpoint.id:
            place = f" ({record.place})" if record.place else ""
            yield f"  {_mark(record.is_proven)}source {record.source}{place}: {_row(record.values)}"
    for correction in answer.corrections:
        if correction.checkpoint == checkpoint.id:
            for request in correction.requests:
                yield f"  {_mark(correction.is_proven)}gate {correction.gate}, {request}"
    for name, rows in checkpoint.states.items():
        for row in rows:
            yield f"  then state {name}: {_row(row)}"
    if checkpoint.row is not None:
        yield f"  then the row: {_row(checkpoint.row)}"


def _proof(answer: Explanation) -> Iterator[str]:
    replays = _count(answer.replays, "replay")
    yield f"From these alone the row is the same ({replays}, {_count(answer.candidates, 'candidate')})."
    if answer.unproven:
        yield (
            f"Not narrowed further: --replays ended before each was left out. {_count(answer.unproven, 'cause')} with "
            "? may be needless. More replays, or fewer checkpoints with --over, tell."
        )
    else:
        yield "Without any one of them it is another row, or none."
    yield from (f"Not repeated, and not needed: {edit}" for edit in answer.manual_edits)
    if answer.other_code:
        yield f"Checkpoint {answer.since} was made by other code; today's code makes the same row."


def _mark(is_proven: bool) -> str:
    return "" if is_proven else "? "


def _row(row: Json) -> str:
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in row.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
