"""Records of the largest pipeline stay below the limit, with names and addresses as long as they may be."""

from __future__ import annotations

import pytest

from tidegate.pipeline.graph.graph import MAX_TABLES
from tidegate.records.codec import INLINE_ALL, RECORD_LIMIT, encode
from tidegate.records.records import (
    Ack,
    Amount,
    Blob,
    Handle,
    JobStats,
    Manifest,
    Payload,
    Plan,
    Published,
    PublishedTable,
    Range,
    Record,
    Restored,
    Rollback,
    SparkWork,
    StepStats,
    TablePart,
)

SINKS = [f"{number:063d}" for number in range(1000)]
SHA = "a" * 64
STAMP = {"attempt": "0" * 16, "created": "2026-01-01T00:00:00.000+00:00", "id": 1_000_000}
URI = "s3://" + "bucket-of-a-large-company" + "/a-folder-of-it" * 6 + "/" + "t" * 63
AT = PublishedTable(uri=URI, version=1_000_000, log_hash=SHA, rows=1_000_000_000)
IN_A_FILE = Payload(blob=Blob(path=f"blobs/{'0' * 16}-{'a' * 16}.json", sha=SHA, size=1_000_000))
INLINE = Payload(data={"x": "y" * (INLINE_ALL // len(SINKS) - 8)})
SPARK = SparkWork(
    queries=10, query_s=100.123, analyses=10, analysis_s=100.123, planning_s=100.123,
    jobs=100, stages=100, tasks=1000, running_s=100.123, task_s=1000.123,
    slowest_task_s=100.123, spilled_bytes=10**12, read_bytes=10**12, written_bytes=10**12,
)  # fmt: skip
RANGE = Range(kind="files", start=None, end={"at": 1}, splits=IN_A_FILE, empty=False)


def rollback() -> Plan:
    tables = {name: Restored(how="restore", to=AT) for name in SINKS}
    restored = Rollback(target=1, manifest=SHA, by="somebody", tables=tables)
    return plan(kind="restart", rollback=restored, sources={})


def plan(**changes: object) -> Plan:
    usual: dict[str, object] = {
        **STAMP,
        "kind": "scheduled",
        "run": "scheduled__2026",
        "base": 999_999,
        "sources": {"files": RANGE},
        "triggers": ["files"],
        "acks": ["main"],
        "commits": SINKS,
        "through": SINKS,
        "timeout_s": 600.0,
        "config": {},
        "config_fingerprint": "0" * 16,
        "code_fingerprint": "0" * 16,
    }
    return Plan(**{**usual, **changes})  # type: ignore[arg-type]


def ack(payload: Payload) -> Ack:
    steps = [StepStats(name=f"stage {name}", after_s=100.123, seconds=100.123, spark=SPARK) for name in SINKS]
    numbers = dict.fromkeys(SINKS, 1_000_000_000)
    stats = JobStats(
        steps=steps,
        seconds={step.name: 100.123 for step in steps},
        read={"files": Amount(rows=1, bytes=1, files=1)},
        rows=numbers,
        bytes=numbers,
        files=numbers,
    )
    sinks = dict.fromkeys(SINKS, payload)
    return Ack(**STAMP, job="main", prev=Handle(entry=1, sha=SHA), sinks=sinks, stats=stats)


def manifest(part: TablePart) -> Manifest:
    return Manifest(
        **STAMP,
        base=1,
        base_manifest=SHA,
        positions={},
        jobs={"main": Handle(entry=1, sha=SHA)},
        tables=dict.fromkeys(SINKS, part),
    )


RECORDS = {
    "plan": plan(),
    "plan of a rollback": rollback(),
    "ack": ack(IN_A_FILE),
    "ack with all inline": ack(INLINE),
    "manifest": manifest(TablePart(after=999_999, committables=[IN_A_FILE])),
    "manifest at least once": manifest(TablePart(after=999_999, committables=[], through=AT)),
    "manifest of a rollback": manifest(
        TablePart(after=None, committables=[IN_A_FILE], restore=Restored(how="restore", to=AT))
    ),
    "published": Published(**STAMP, tables=dict.fromkeys(SINKS, AT), home=URI, paths=dict.fromkeys(SINKS, URI)),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_as_many_tables_as_there_may_be_fit_into_every_record(record: Record) -> None:
    size = len(encode(record))
    assert size <= RECORD_LIMIT * len(SINKS) // MAX_TABLES, f"{size:,}"
