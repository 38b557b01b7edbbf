"""What must not be done with diverts (docs/protocol.md, section 15), each in a small world that shows the damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.model.mutations import Mutation
from tests.model.worlds import (
    DIVERTED,
    DIVERTED_AND_BACK,
    DIVERTED_AND_POWER,
    DIVERTED_BESIDE,
    DIVERTED_IN_PARTS,
    DIVERTED_TWICE,
)
from tidegate.protocol import rules
from tidegate.protocol.view import View

Applied = Mapping[int, bool]


def _quarantine_at_once(view: View, table: str, last: int | None, applied: Applied, begun: int | None) -> object:
    answer = rules.on_publish(view, table, last, applied, begun)
    if isinstance(answer, rules.AwaitDivert):
        return rules.Publish(answer.id, last, diverted=True)
    return answer


def _anywhere(view: View, table: str, last: int | None, applied: Applied, begun: int | None) -> object:
    answer = rules.on_publish(view, table, last, applied, begun)
    if isinstance(answer, rules.SettleDivert) and not answer.applied and (last or 0) < answer.id:
        return rules.Publish(answer.id, last, diverted=True)
    return answer


def _without_a_note(view: View, table: str, last: int | None, applied: Applied, begun: int | None) -> object:
    answer = rules.on_publish(view, table, last, applied, begun)
    if isinstance(answer, rules.SettleDivert):
        following = rules.on_publish(view, table, last, {**applied, answer.id: answer.applied}, begun)
        return answer if isinstance(following, rules.NothingToPublish) else following
    return answer


def _too_early(view: View, table: str, last: int | None, applied: Applied, begun: int | None) -> object:
    for entry in view.entries:
        part = entry.manifest.tables[table] if entry.manifest is not None else None
        diverted = part.diverted if part is not None else None
        if diverted is None or diverted.table != table or entry.id in applied or last == diverted.after:
            continue
        return rules.SettleDivert(entry.id, applied=last == entry.id)
    return rules.on_publish(view, table, last, applied, begun)


def _over_a_part(view: View, table: str, last: int | None, applied: Applied, begun: int | None) -> object:
    return rules.on_publish(view, table, last, applied)


DIVERT_MUTATIONS = [
    Mutation("quarantine before the table", replace(DIVERTED, on_publish=_quarantine_at_once), "I1"),
    Mutation("divert whatever the table holds", replace(DIVERTED, on_publish=_anywhere), "I1"),
    Mutation("publish over a divert that is not noted", replace(DIVERTED_TWICE, on_publish=_without_a_note), "I8"),
    Mutation("note by a table that was read too early", replace(DIVERTED_BESIDE, on_publish=_too_early), "I"),
    Mutation("divert what a target has a part of", replace(DIVERTED_IN_PARTS, on_publish=_over_a_part), "I1"),
    Mutation("forget the rows of an earlier divert", DIVERTED_TWICE, "I8"),
    Mutation("divert over a rollback that waits", DIVERTED_AND_BACK, "I8"),
    Mutation("publish over a note that is not durable", DIVERTED_AND_POWER, "I8"),
]
