"""However many tables a pipeline has, and however many files each gets, its records stay below their limit."""

from __future__ import annotations

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySink
from tidegate.pipeline.graph.graph import MAX_TABLES
from tidegate.records.codec import INLINE_ALL, INLINE_LIMIT, RECORD_LIMIT

COLUMNS = {f"column_{place}": {"type": "long", "nullable": True, "metadata": {}} for place in range(20)}


@pytest.mark.slow
def test_six_hundred_tables_of_many_files_are_one_checkpoint(tmp_path, monkeypatch):
    """Their committables have 1.7 MB together: in one record it was refused once every job had acked."""
    real = ToySink.prepare
    told = lambda prepared: prepared.committable | {"columns": COLUMNS} if prepared.committable else None  # noqa: E731

    def prepare(sink, *args):
        prepared = real(sink, *args)
        return type(prepared)(told(prepared), prepared.rows, files=prepared.files)

    monkeypatch.setattr(ToySink, "prepare", prepare)
    names = [f"t{place:03}" for place in range(600)]
    world = ToyWorld(tmp_path, sinks=dict.fromkeys(names, 0), bound=8)
    id = world.checkpoint("run 1", rows=8)
    assert world.ledger.published(id) is not None
    for name in names:
        assert world.offsets(name) == list(range(1, 9))
    sizes = [path.stat().st_size for path in world.path(id).rglob("*.json")]
    assert max(sizes) < RECORD_LIMIT * len(names) / MAX_TABLES, "with as many tables as may be it would be refused"


def test_a_few_tables_say_it_in_the_record_as_before(tmp_path):
    ledger = ToyWorld(tmp_path).ledger
    value = {"text": "x" * (INLINE_LIMIT - 100)}
    for parts in range(1, INLINE_ALL // INLINE_LIMIT + 1):
        assert ledger.pack(value, parts).blob is None
    assert ledger.pack(value, 100).blob is not None
    assert ledger.unpack(ledger.pack(value, 100)) == value
