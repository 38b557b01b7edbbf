"""A backfill begins where the pipeline began to read, also if a person has moved that to another system before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.toy_backfill import Endless, Numbers, never, replayed
from tidegate.backfill import begin, swap
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid
from tidegate.lifecycle.source_acts import accept_source
from tidegate.records.records import Json


@dataclass
class Server:
    """What the source reads."""

    timeline: int = 1
    now: int = 10


class FromNowOn(Numbers):
    """Begins with what comes after the first look, and knows on which timeline it has read."""

    def __init__(self, server: Server) -> None:
        super().__init__(rows=2)
        self.server = server

    def beginning(self, context: SourceContext) -> Json:
        return {"offset": self.server.now, "timeline": self.server.timeline}

    def plan(self, start: Json | None, context: SourceContext) -> Any:
        if start is not None and start["timeline"] != self.server.timeline:
            raise Invalid("another timeline")
        planned = super().plan({"offset": start["offset"]} if start is not None else None, context)
        return replace(planned, end={**planned.end, "timeline": self.server.timeline})

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        return {**position, "timeline": self.server.timeline}


@pytest.mark.parametrize("by_hand", [False, True], ids=["", "after a change by hand, which reads nothing"])
def test_a_backfill_from_the_beginning_knows_where_a_source_was_accepted_unread(tmp_path: Path, by_hand: bool) -> None:
    server = Server()
    world = Endless(tmp_path)
    world.source = FromNowOn(server)
    failed = world.trigger("first")
    world.coordinator().abort(failed, "CANCELLED", "")
    if by_hand:
        world.checkpoint("by hand", standing=True)
    server.timeline, server.now = 2, 30
    with pytest.raises(Invalid, match="another timeline"):
        world.trigger("second")
    accept_source(world.coordinator(), "in", by="ann")
    for number in range(3):
        world.checkpoint(f"run {number}")
    before = world.rows()
    assert before == [10, 11, 12, 13, 14, 15]
    line = begin(world.coordinator(), "fix", 0, by="ann", drops_by_hand=by_hand)
    replayed(line)
    swap(line, by="ann", choices={}, wait=never)
    assert world.rows() == before
