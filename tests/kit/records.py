"""One of each record with every field filled, and hypothesis strategies for any."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from hypothesis import strategies as st

from tidegate.records.interval import Interval
from tidegate.records.records import (
    Ack,
    Act,
    Acted,
    Amount,
    Answer,
    Beginning,
    Blob,
    ChangeByHand,
    Claimed,
    Computed,
    Control,
    Copy,
    Decision,
    Declined,
    Discarded,
    Divert,
    Diverted,
    DivertedPart,
    DivertedRows,
    Drift,
    Filled,
    FoundColumn,
    Handle,
    Hold,
    HookProgress,
    InFlight,
    JobStats,
    KnownColumn,
    LatestHint,
    Manifest,
    Origin,
    Overtaken,
    Overtaking,
    Pace,
    Payload,
    Pin,
    PipelineRecord,
    Plan,
    Position,
    Promise,
    Published,
    PublishedTable,
    Range,
    Record,
    RecordedRule,
    Request,
    Restored,
    Retired,
    Rollback,
    SourceSchema,
    SparkWork,
    StepStats,
    SwappedBackfill,
    TablePart,
    Timed,
    TracedColumns,
    Tried,
    Trouble,
    Verdict,
)

STAMP: dict[str, Any] = {"attempt": "00f1e2d3c4b5a697", "created": "2026-03-01T10:11:12.345+00:00"}
BLOB = Blob(path="blobs/00f1e2d3c4b5a697-0123456789abcdef.json", sha="01" * 32, size=40_000)
WORK = SparkWork(
    queries=2,
    query_s=0.1,
    analyses=7,
    analysis_s=0.015,
    planning_s=0.02,
    jobs=3,
    stages=4,
    tasks=8,
    running_s=0.06,
    task_s=0.09,
    slowest_task_s=0.04,
    spilled_bytes=0,
    read_bytes=4_096,
    written_bytes=2_048,
)

SAMPLES: dict[str, Record] = {
    "pipeline": PipelineRecord(**STAMP, uid="a1b2c3d4e5f60718", name="orders"),
    "forked": PipelineRecord(
        **STAMP,
        uid="b1b2c3d4e5f60718",
        name="trial",
        origin=Origin(
            pipeline="orders",
            uid="a1b2c3d4e5f60718",
            entry=42,
            manifest="cd" * 32,
            by="ann on host",
            note="new prices",
        ),
    ),
    "copy": Copy(
        **STAMP,
        name="before-prices",
        origin=Origin(pipeline="orders", uid="a1b2c3d4e5f60718", entry=42, manifest="cd" * 32, by="ann on host"),
        files=Payload(data={"files": {"pipeline.json": [123, "ab" * 32]}}),
    ),
    "claimed": Claimed(**STAMP, uid="b1b2c3d4e5f60718"),
    "plan": Plan(
        **STAMP,
        id=42,
        kind="scheduled",
        run="scheduled__2026-03-01T10:00:00+00:00",
        generation=2,
        base=41,
        clock="2026-03-01T10:11:12.000+00:00",
        interval=("2026-03-01T09:00:00+00:00", "2026-03-01T10:00:00+00:00"),
        sources={
            "orders": Range(
                kind="files",
                start={"last": "a.json"},
                end={"last": "ü.json", "seen": [{"path": BLOB.path, "sha": BLOB.sha, "size": BLOB.size}]},
                splits=Payload(blob=BLOB),
                empty=False,
                more=True,
                summary="3 of 9 files, 1.2 MB",
                pace=Pace(
                    unit="bytes",
                    at_most=1_500_000,
                    planned=1_200_000,
                    target_s=48.0,
                    fixed_s=2.5,
                    based_on=[Timed(id=41, amount=1_300_000, seconds=47.5)],
                    why="at most 1,500,000 bytes, so that a checkpoint takes about 48 s",
                ),
                schema=SourceSchema(
                    ddl="`id` bigint, `vip` boolean",
                    known={"vip": KnownColumn(type="boolean", checkpoint=40, file="a.json")},
                    through=41,
                    evolves=True,
                ),
            ),
            "rates": Range(kind="generator", start=None, end=None, splits=Payload(data={}), empty=True),
        },
        triggers=["orders", "rates"],
        acks=["main", "scoring"],
        takes={"scoring": {"clean": "main"}},
        overtaking=Overtaking(jobs=["scoring"], after_s=30.0),
        commits=["orders", "rejects"],
        through=["rejects"],
        promises={"orders": Promise(fresh_s=900.0, jobs=["main"], sources=["orders", "rates"])},
        hooks={"model": {"version": "2026-02"}},
        timeout_s=600.0,
        config={"num_retained": 10, "interval": None},
        config_fingerprint="0123456789abcdef",
        code_fingerprint="fedcba9876543210",
        planning_s=0.045,
    ),
    "swap": Plan(
        **STAMP,
        id=43,
        kind="restart",
        run="line:c1b2c3d4e5f60718",
        generation=3,
        base=42,
        clock="2026-03-01T10:11:13.000+00:00",
        rollback=Rollback(
            target=30,
            manifest="cd" * 32,
            line=SwappedBackfill(name="new-prices", uid="c1b2c3d4e5f60718", head=35, manifest="ef" * 32),
            by="ann on host",
            tables={
                "orders": Restored(how="restore", to=PublishedTable(uri="/t/orders", version=7, log_hash="ab" * 32))
            },
        ),
        sources={},
        triggers=[],
        acks=[],
        commits=["orders"],
        timeout_s=600.0,
        config={},
        config_fingerprint="0123456789abcdef",
        code_fingerprint="fedcba9876543210",
    ),
    "ack": Ack(
        **STAMP,
        id=42,
        job="main",
        prev=Handle(entry=41, sha="ab" * 32),
        sinks={"orders": Payload(data={"files": [{"path": "x.parquet", "rows": 3}]}), "rejects": Payload(blob=BLOB)},
        states={"state.totals": Payload(blob=BLOB)},
        memory={"orders": {"watermark": "2026-03-01T10:00:00+00:00"}},
        gates={
            "checked": Verdict(
                outcome="hold",
                rows=100,
                quarantined=3,
                released=2,
                hold=Hold(limit_s=86_400.0, default="reject"),
                broken=[RecordedRule(rule="id", policy="quarantine", severity="critical", rows=3, why="3 of 100 rows")],
                policy={"suite": "orders", "at_most": 0.05},
                results=Payload(blob=BLOB),
            )
        },
        inputs={"scoring": [Handle(entry=42, sha="0f" * 32)]},
        ahead=[Handle(entry=43, sha="1f" * 32)],
        channels={"clean": Payload(blob=BLOB)},
        through={"rejects": PublishedTable(uri="/t/rejects", version=7, log_hash="ab" * 32, rows=3)},
        drift={
            "orders": Drift(
                found=[FoundColumn(path="vip", kind="new", type="boolean", records=2, file="a.json")], records=2, more=1
            )
        },
        columns=TracedColumns(
            code="fedcba9876543210",
            sources={"orders": "0123456789abcdef"},
            stages=Payload(data={"clean": {"clean": {"id": [["orders", "id", "identity"]], "who": None}}}),
        ),
        stats=JobStats(
            started="2026-03-01T10:11:11.000+00:00",
            seconds={"read": 0.125},
            aligned_s=0.25,
            sync_s=1.5,
            async_s=0.5,
            read={"orders": Amount(rows=3, bytes=700, files=2)},
            received={"scores": Amount(rows=5, bytes=900, files=1)},
            sent={"clean": Amount(rows=4, bytes=800, files=1)},
            processed=Amount(rows=2, bytes=400, files=1),
            rows={"orders": 3},
            bytes={"orders": 512},
            files={"orders": 1},
            watermarks={"orders": "2026-03-01T10:00:00Z"},
            idle=["payments"],
            counts={"window": {"late": 2}},
            steps=[
                StepStats(name="read", after_s=0.25, seconds=0.125, spark=WORK),
                StepStats(
                    name="state totals",
                    after_s=0.375,
                    seconds=0.5,
                    computed=Computed(
                        spark=True,
                        why=["a left join"],
                        spilled=4096,
                        row_groups_read=3,
                        row_groups=120,
                        rows_in=1000,
                        rows_out=20,
                    ),
                ),
            ],
            between_steps=SparkWork(queries=0, query_s=0.0),
        ),
    ),
    "manifest": Manifest(
        **STAMP,
        id=42,
        base=41,
        base_manifest="cd" * 32,
        positions={
            "orders": Position(kind="files", at={"last": "ü.json"}),
            "rates": Position(kind="generator", at=None),
        },
        jobs={"main": Handle(entry=42, sha="ef" * 32)},
        tables={
            "orders": TablePart(after=40, committables=[Payload(data={"files": []})]),
            "rejects": TablePart(
                after=None,
                committables=[],
                through=PublishedTable(uri="/t/rejects", version=7, log_hash="ab" * 32, rows=3),
            ),
        },
        in_flight={
            "scoring": [
                InFlight(job="main", ack=Handle(entry=42, sha="ef" * 32), channels={"clean": Payload(blob=BLOB)})
            ]
        },
    ),
    "rollback": Plan(
        **STAMP,
        id=43,
        kind="restart",
        run="process:host:4711:123:0123456789abcdef",
        generation=3,
        base=42,
        rollback=Rollback(
            target=40,
            manifest="cd" * 32,
            by="ann on host",
            reason="wrong prices",
            tables={
                "orders": Restored(
                    how="restore", to=PublishedTable(uri="/data/orders", version=5, log_hash="ee" * 32, rows=3)
                ),
                "rejects": Restored(how="discard", to=None),
            },
            suspended=Control(action="suspend", by="ann on host", reason="to be looked at"),
        ),
        sources={"orders": Range(kind="files", start=None, end=None, splits=Payload(data={}), empty=True, more=True)},
        triggers=[],
        acks=[],
        commits=["orders", "rejects"],
        timeout_s=600.0,
        config={},
        config_fingerprint="0123456789abcdef",
        code_fingerprint="fedcba9876543210",
    ),
    "restored": Manifest(
        **STAMP,
        id=43,
        base=42,
        base_manifest="cd" * 32,
        positions={"orders": Position(kind="files", at={"last": "ü.json"})},
        jobs={"main": Handle(entry=40, sha="ef" * 32)},
        tables={
            "orders": TablePart(after=None, committables=[], restore=Restored(how="keep", to=None)),
            "state.totals": TablePart(
                after=None, committables=[Payload(blob=BLOB)], restore=Restored(how="restore", to=None)
            ),
        },
    ),
    "pin": Pin(
        **STAMP,
        owner="rollback-00000043-00f1e2d3c4b5a697",
        kind="rollback",
        entry=40,
        manifest="cd" * 32,
        rollback=43,
        by="ann on host",
        note="wrong prices",
    ),
    "overtaken": Overtaken(**STAMP, id=42, job="scoring", busy_with=40),
    "divert": Plan(
        **STAMP,
        id=44,
        kind="manual",
        run="process:host:4711:123:0123456789abcdef",
        base=43,
        by_hand=ChangeByHand(operator="orders", action="divert", by="ann on host"),
        divert=Divert(
            table="orders",
            gate="orders-refused",
            after=41,
            condition="id = 7",
            refused="key is taken",
            by="ann on host",
            note="sent twice",
        ),
        sources={"orders": Range(kind="files", start=None, end=None, splits=Payload(data={}), empty=True)},
        triggers=[],
        acks=["main"],
        commits=["orders", "quarantine.orders-refused"],
        timeout_s=600.0,
        config={},
        config_fingerprint="0123456789abcdef",
        code_fingerprint="fedcba9876543210",
    ),
    "diverting": Ack(
        **STAMP,
        id=44,
        job="main",
        prev=None,
        sinks={},
        diverted=DivertedRows(
            rest=[Payload(blob=BLOB)], quarantined=[Payload(data={"files": []})], rows=2, by_checkpoint={"42": 2}
        ),
        stats=JobStats(),
    ),
    "diverts": Manifest(
        **STAMP,
        id=44,
        base=43,
        base_manifest="cd" * 32,
        positions={"orders": Position(kind="files", at={"last": "ü.json"})},
        jobs={"main": Handle(entry=44, sha="ef" * 32)},
        tables={
            "orders": TablePart(
                after=43,
                committables=[],
                diverted=DivertedPart(table="orders", after=41, committables=[Payload(blob=BLOB)]),
            )
        },
    ),
    "diverted": Diverted(**STAMP, id=44, applied=True),
    "decision": Decision(**STAMP, id=42, outcome="completed", manifest="ef" * 32),
    "abort": Decision(**STAMP, id=42, outcome="aborted", reason="JOB_FAILED", detail="out of memory", counts=True),
    "published": Published(
        **STAMP,
        id=42,
        tables={"orders": PublishedTable(uri="/data/orders", version=7, log_hash="ee" * 32, rows=3)},
    ),
    "answer": Answer(
        **STAMP,
        id=42,
        gate="checked",
        ack=Handle(entry=42, sha="23" * 32),
        approve=True,
        by="ann on host",
        note="known",
    ),
    "request": Request(
        **STAMP,
        number=3,
        gate="checked",
        action="release",
        seen=41,
        ids=["0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"],
        checkpoints=[40, 41],
        rules=["positive"],
        correct={"amount": "0", "note": None},
        correct_sql={"country": "upper(trim(country))"},
        by="ann on host",
        note="the feed was wrong",
    ),
    "retired": Retired(**STAMP, id=42),
    "discarded": Discarded(**STAMP, id=42, control=43),
    "filled": Filled(
        **STAMP,
        id=42,
        interval=("2026-03-01T09:00:00+00:00", "2026-03-01T10:00:00+00:00"),
        traces={"orders": {"files": 3, "sha": "ab" * 32}},
    ),
    "beginning": Beginning(**STAMP, id=42, source="orders", at={"version": 17, "sha": "ab" * 32}),
    "latest": LatestHint(**STAMP, id=42),
    "told": HookProgress(**STAMP, id=42, settled={"model": 43}),
    "tried": Tried(**STAMP, stores=["s3://ledger", "s3://tables"]),
    "declined": Declined(
        **STAMP,
        id=42,
        declaration="ab" * 32,
        reason="BAD_OUTPUT",
        what="sink totals: the output does not fit tables/totals",
        expected="names and types of the table",
        help="change the last stage before the sink",
    ),
    "trouble": Trouble(
        **STAMP,
        run="airflow/orders/scheduled__2026-03-01",
        step="trigger",
        entry=42,
        after=43,
        kind="invalid",
        reason="STATE_INCOMPATIBLE",
        what="operator 'totals' cannot go on with what it remembers",
        expected="sum(amount)",
        help="give it another uid",
    ),
    "act": Act(
        **STAMP,
        action="rollback",
        by="ann in Airflow",
        request={"to": 42, "note": "wrong prices"},
        run="airflow:orders:manual__1",
    ),
    "acted": Acted(**STAMP, succeeded=False, message="checkpoint 42 is claimed by retention"),
}

# -- any record ------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.integers(1, 10**9)
shas = st.text("0123456789abcdef", min_size=64, max_size=64)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, jsons, max_size=3)
maybe = st.none() | objects
blobs = st.builds(Blob, path=st.just(BLOB.path), sha=shas, size=st.integers(0, 2**40))
payloads = st.builds(Payload, data=objects) | st.builds(Payload, blob=blobs)
handles = st.builds(Handle, entry=ids, sha=shas)
stamps: dict[str, Any] = {"attempt": texts, "created": texts}
ranges = st.builds(
    Range, kind=texts, start=maybe, end=maybe, splits=payloads, empty=st.booleans(), more=st.booleans(), summary=texts
)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
intervals = st.lists(moments, min_size=2, max_size=2).map(lambda two: Interval.of(*sorted(two)).record)
names = st.lists(texts, max_size=3)
numbers = st.dictionaries(texts, st.integers(0, 2**60), max_size=3)
seconds = st.dictionaries(texts, st.floats(0, 1e9), max_size=3)


T = TypeVar("T")


def by_name(values: st.SearchStrategy[T]) -> st.SearchStrategy[dict[str, T]]:
    return st.dictionaries(texts, values, max_size=3)


places = st.builds(
    PublishedTable, uri=texts, version=st.integers(0, 2**40), log_hash=texts, rows=st.none() | st.integers()
)
restored = st.builds(Restored, how=st.sampled_from(["restore", "discard", "retract", "keep"]), to=st.none() | places)
acts = st.builds(Control, action=st.just("suspend"), by=texts, reason=texts)
origins = st.builds(Origin, pipeline=texts, uid=texts, entry=ids, manifest=shas, by=texts, note=texts)

RECORDS: dict[str, st.SearchStrategy[Record]] = {
    "act": st.builds(Act, **stamps, action=texts, by=texts, request=objects, run=texts),
    "acted": st.builds(Acted, **stamps, succeeded=st.booleans(), message=texts),
    "pipeline": st.builds(PipelineRecord, **stamps, uid=texts, name=texts),
    "forked": st.builds(
        PipelineRecord,
        **stamps,
        uid=texts,
        name=texts,
        origin=origins,
    ),
    "copy": st.builds(Copy, **stamps, name=texts, origin=origins, files=payloads),
    "claimed": st.builds(Claimed, **stamps, uid=texts),
    "plan": st.builds(
        Plan,
        **stamps,
        id=st.integers(10**9 + 1, 2**62),
        kind=st.sampled_from(["scheduled", "manual"]),
        run=texts,
        generation=st.integers(0, 9),
        base=st.none() | ids,
        interval=st.none() | intervals,
        reach=st.none() | intervals,
        sources=by_name(ranges),
        triggers=names,
        acks=names,
        commits=names,
        timeout_s=st.floats(0, 1e9),
        config=objects,
        config_fingerprint=texts,
        code_fingerprint=texts,
    ),
    "ack": st.builds(
        Ack,
        **stamps,
        id=ids,
        job=texts,
        prev=st.none() | handles,
        sinks=by_name(payloads),
        stats=st.builds(JobStats, seconds=seconds, rows=numbers, bytes=numbers, files=numbers),
    ),
    "manifest": st.builds(
        Manifest,
        **stamps,
        id=ids,
        base=st.none() | ids,
        base_manifest=st.none() | shas,
        positions=by_name(st.builds(Position, kind=texts, at=maybe)),
        jobs=by_name(handles),
        tables=by_name(st.builds(TablePart, after=st.none() | ids, committables=st.lists(payloads, max_size=2))),
    ),
    "decision": st.builds(Decision, **stamps, id=ids, outcome=st.just("completed"), manifest=shas),
    "abort": st.builds(
        Decision, **stamps, id=ids, outcome=st.just("aborted"), reason=texts, detail=texts, counts=st.booleans()
    ),
    "published": st.builds(
        Published,
        **stamps,
        id=ids,
        tables=by_name(places),
    ),
    "rollback": st.builds(
        Plan,
        **stamps,
        id=st.integers(10**9 + 1, 2**62),
        kind=st.just("restart"),
        run=texts,
        base=ids,
        rollback=st.builds(
            Rollback, target=ids, manifest=shas, by=texts, tables=by_name(restored), suspended=st.none() | acts
        ),
        sources=by_name(ranges),
        triggers=st.just([]),
        acks=st.just([]),
        commits=names,
        timeout_s=st.floats(0, 1e9),
        config=objects,
        config_fingerprint=texts,
        code_fingerprint=texts,
    ),
    "swap": st.builds(
        Plan,
        **stamps,
        id=st.integers(10**9 + 1, 2**62),
        kind=st.just("restart"),
        run=texts,
        base=ids,
        rollback=st.builds(
            Rollback,
            target=ids,
            manifest=shas,
            line=st.builds(SwappedBackfill, name=texts, uid=texts, head=ids, manifest=shas),
            by=texts,
            tables=by_name(restored),
        ),
        sources=by_name(ranges),
        triggers=st.just([]),
        acks=st.just([]),
        commits=names,
        timeout_s=st.floats(0, 1e9),
        config=objects,
        config_fingerprint=texts,
        code_fingerprint=texts,
    ),
    "restored": st.builds(
        Manifest,
        **stamps,
        id=ids,
        base=ids,
        base_manifest=shas,
        positions=by_name(st.builds(Position, kind=texts, at=maybe)),
        jobs=by_name(handles),
        tables=by_name(st.builds(TablePart, after=st.none(), committables=st.just([]), restore=restored)),
    ),
    "pin": st.builds(
        Pin,
        **stamps,
        owner=texts,
        kind=st.just("rollback"),
        entry=ids,
        manifest=shas,
        rollback=ids,
        by=texts,
        note=texts,
    ),
    "overtaken": st.builds(Overtaken, **stamps, id=ids, job=texts, busy_with=st.none() | ids),
    "divert": st.builds(
        Plan,
        **stamps,
        id=st.integers(10**9 + 1, 2**62),
        kind=st.just("manual"),
        run=texts,
        base=ids,
        by_hand=st.builds(ChangeByHand, operator=texts, action=st.just("divert"), by=texts),
        divert=st.builds(
            Divert, table=texts, gate=texts, after=st.none() | ids, condition=texts, refused=texts, by=texts, note=texts
        ),
        sources=by_name(ranges),
        triggers=st.just([]),
        acks=names,
        commits=names,
        timeout_s=st.floats(0, 1e9),
        config=objects,
        config_fingerprint=texts,
        code_fingerprint=texts,
    ),
    "diverting": st.builds(
        Ack,
        **stamps,
        id=ids,
        job=texts,
        prev=st.none() | handles,
        sinks=st.just({}),
        diverted=st.builds(
            DivertedRows,
            rest=st.lists(payloads, max_size=2),
            quarantined=st.lists(payloads, max_size=2),
            rows=st.integers(0, 9),
            by_checkpoint=numbers,
        ),
        stats=st.builds(JobStats),
    ),
    "diverts": st.builds(
        Manifest,
        **stamps,
        id=ids,
        base=ids,
        base_manifest=shas,
        positions=by_name(st.builds(Position, kind=texts, at=maybe)),
        jobs=by_name(handles),
        tables=by_name(
            st.builds(
                TablePart,
                after=st.none() | ids,
                committables=st.just([]),
                diverted=st.builds(
                    DivertedPart, table=texts, after=st.none() | ids, committables=st.lists(payloads, max_size=2)
                ),
            )
        ),
    ),
    "diverted": st.builds(Diverted, **stamps, id=ids, applied=st.booleans()),
    "retired": st.builds(Retired, **stamps, id=ids),
    "discarded": st.builds(Discarded, **stamps, id=ids, control=ids),
    "answer": st.builds(
        Answer,
        **stamps,
        id=ids,
        gate=texts,
        ack=handles,
        approve=st.booleans(),
        quarantine=st.booleans(),
        by=texts,
        note=texts,
    ),
    "request": st.builds(
        Request,
        **stamps,
        number=ids,
        gate=texts,
        action=st.sampled_from(["release", "discard"]),
        seen=ids,
        ids=st.lists(texts, max_size=2),
        checkpoints=st.lists(ids, max_size=2),
        rules=st.lists(texts, max_size=2),
        correct=by_name(st.none() | texts),
        by=texts,
        note=texts,
    ),
    "filled": st.builds(Filled, **stamps, id=ids, interval=intervals, traces=by_name(objects)),
    "beginning": st.builds(Beginning, **stamps, id=ids, source=texts, at=objects),
    "latest": st.builds(LatestHint, **stamps, id=ids),
    "told": st.builds(HookProgress, **stamps, id=ids, settled=st.dictionaries(texts, ids, max_size=2)),
    "tried": st.builds(Tried, **stamps, stores=st.lists(texts, max_size=2)),
    "declined": st.builds(
        Declined,
        **stamps,
        id=ids,
        declaration=texts,
        reason=texts,
        what=texts,
        expected=texts,
        help=texts,
        notified=st.booleans(),
    ),
    "trouble": st.builds(
        Trouble,
        **stamps,
        run=texts,
        step=texts,
        entry=st.none() | ids,
        after=st.integers(0, 2**53),
        kind=texts,
        reason=texts,
        what=texts,
        expected=texts,
        help=texts,
    ),
}
