"""What an error advises where a target and the log contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.checkpoint.publishing.table_mismatch import mismatch_error
from tidegate.connectors.sink import Head
from tidegate.coordinator import Coordinator
from tidegate.ledger.ledger import open_ledger
from tidegate.protocol.view import View
from tidegate.records.place import Place
from tidegate.sinks import FileExport, KafkaTopic, Sink
from tidegate.sources import Generator


@pytest.mark.parametrize(
    ("sink", "can"), [(KafkaTopic("rows", servers="nowhere:9092"), True), (FileExport("out"), False)]
)
def test_a_mark_is_to_be_put_back_only_where_that_can_be_done(tmp_path: Path, sink: Sink, can: bool) -> None:
    """FileExport answered the advice with NO_MARK."""
    pipeline = Pipeline("shop")
    pipeline.source("in", Generator(rows=1)).sink("out", sink)
    place = Place(str(tmp_path))
    coordinator = Coordinator(pipeline.graph(place), open_ledger(f"{tmp_path}/ledger", "shop"), Limits(), place)
    error = mismatch_error(coordinator, View(()), coordinator.graph.sinks["out"], Head(None, None), "it has no mark")
    assert ("`tidegate mark MODULE:PIPELINE --sink out`" in error.help) is can
