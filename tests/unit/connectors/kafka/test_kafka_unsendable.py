"""What is said of records that a topic would not take: where to look, and never the value of a row."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate import seams
from tidegate.connectors.kafka.creating_topics import TopicInfo
from tidegate.connectors.kafka.unsendable import refuse_unsendable
from tidegate.connectors.transactional import StagedPart
from tidegate.delta import Location, StagedFile
from tidegate.errors import Invalid

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
LIMITS = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}


def refusal(folder: Path, column: str, value: int, config: dict[str, str]) -> Invalid:
    """What is said of one staged record."""
    pq.write_table(pa.table({column: pa.array([value], pa.int64())}), folder / "part")
    part = StagedPart(columns={}, files=[StagedFile(path="part", size=1, rows=1)])
    limits: Any = {"cleanup.policy": "delete", "max.message.bytes": "1000", "segment.bytes": "1000", **config}
    topic = TopicInfo("c", "orders", "id", 3, may_write=True, config=limits)
    with seams.installed(seams.Seams(now=lambda: NOW)), pytest.raises(Invalid) as refused:
        refuse_unsendable(part, Location(str(folder)), topic, "out", 0)
    return refused.value


@pytest.mark.parametrize(
    ("column", "value", "config", "quoted"),
    [
        ("partition", 7719, {}, "partition 7719"),
        ("partition", -7719, {}, "partition -7719"),
        ("timestamp", -77190, {}, "such as 1969-12-31T23:58:42.810000+00:00"),
        ("timestamp", 77190, LIMITS, "such as 1970-01-01T00:01:17.190000+00:00"),
        ("timestamp", 2444446921000, LIMITS, "such as 2047-06-18T"),
    ],
)
def test_a_record_that_the_topic_does_not_take_is_told_without_its_value(
    tmp_path: Path, column: str, value: int, config: dict[str, str], quoted: str
) -> None:
    refused = refusal(tmp_path, column, value, config)
    assert refused.reason in ("NO_PARTITION", "BAD_TIME")
    for shown in ("7719", "1969-12-31", "00:01:17", "2047", "2444446921"):
        assert shown not in str(refused)
    assert refused.quoted.startswith(quoted), "for whoever may read rows"
