"""list, show, explain, read: what they tell of checkpoints in every state."""

import os

import pytest

from tidegate.records.records import Amount, Lag, Pace


@pytest.fixture
def history(project):
    """1 completed, 2 aborted, 3 completed on 1, 4 completed but unpublished, 5 open."""
    project.complete(1, None)
    project.plan(2, 1)
    project.abort(2, detail="a stage failed")
    project.complete(3, 1, code="other", config=project.config | {"timeout": "5 min"})
    project.complete(4, 3, publish=False)
    project.plan(5, 4)
    return project


def test_list_names_the_pipelines(history, tidegate):
    said = tidegate("list", "--json")
    assert said.code == 0
    assert said.json["root"] == str(history.folder / "ledger")
    assert [(p["name"], p["last_checkpoint"], p["state"], p["last_completed"]) for p in said.json["pipelines"]] == [
        ("orders", 5, "open", 4)
    ]
    text = tidegate("list").out
    assert "orders" in text
    assert "open" in text


def test_list_of_an_empty_root_says_how_to_begin(folder, tidegate):
    said = tidegate("list")
    assert said.code == 0
    assert "No pipeline has been run" in said.out
    assert tidegate("list", "--json").json["pipelines"] == []


def test_a_damaged_pipeline_does_not_hide_the_others(history, tidegate):
    (history.folder / "ledger" / "torn").mkdir()
    (history.folder / "ledger" / "torn" / "pipeline.json").write_text("{")
    (history.folder / "ledger" / "torn" / "checkpoints" / "00000001").mkdir(parents=True)
    (history.folder / "ledger" / "torn" / "checkpoints" / "00000001" / "plan.json").write_text("{")
    found = {p["name"]: p["state"] for p in tidegate("list", "--json").json["pipelines"]}
    assert found == {"orders": "open", "torn": "corrupt"}


def test_list_shows_checkpoints_newest_first(history, tidegate):
    found = tidegate("list", "orders", "--json").json
    assert [(c["id"], c["state"]) for c in found["checkpoints"]] == [
        (5, "open"),
        (4, "completed, unpublished"),
        (3, "completed"),
        (2, "aborted"),
        (1, "completed"),
    ]
    assert found["has_more"] is False
    assert found["checkpoints"][2]["rows"] == {"good": 3}
    assert found["checkpoints"][0]["missing_acks"] == ["main"]
    text = tidegate("list", "orders").out
    assert "JOB_FAILED" in text
    assert "events: 1 file, 20 B" in text
    assert "tidegate explain orders 5" in text


def test_list_in_pages(history, tidegate):
    first = tidegate("list", "orders", "--limit", "2", "--json").json
    assert ([c["id"] for c in first["checkpoints"]], first["has_more"]) == ([5, 4], True)
    second = tidegate("list", "orders", "--limit", "3", "--before", "4", "--json").json
    assert ([c["id"] for c in second["checkpoints"]], second["has_more"]) == ([3, 2, 1], False)
    assert "--before 4" in tidegate("list", "orders", "--limit", "2").out


def test_show_has_every_record(history, tidegate):
    found = tidegate("show", "orders", "3", "--json").json
    assert found["state"] == "completed"
    assert found["base"] == 1
    assert found["jobs"]["main"]["attempt"] == "attempt3"
    assert found["tables"]["good"]["version"] == 1
    records = found["records"]
    assert records["plan"]["id"] == records["decision"]["id"] == records["manifest"]["id"] == 3
    assert records["acks"]["main"]["job"] == "main"
    assert records["published"]["tables"]["good"]["uri"] == str(history.table)


@pytest.mark.parametrize(
    ("id", "parts"),
    [
        (2, ["Checkpoint 2 of orders: aborted", "reason    JOB_FAILED: a stage failed", "no ack yet"]),
        (3, ["Checkpoint 3 of orders: completed", "base      1", "attempt3", "2.0 kB", "good"]),
        (5, ["Checkpoint 5 of orders: open", "no ack yet", "checkpoints/00000005"]),
    ],
)
def test_show_in_words(history, tidegate, id, parts):
    said = tidegate("show", "orders", str(id))
    assert said.code == 0
    for part in parts:
        assert part in said.out


def test_show_and_explain_tell_what_was_read_how_long_each_part_took_and_why_so_much(project, tidegate):
    pace = Pace(unit="bytes", at_most=900, planned=800, target_s=48.0, why="at most 900 bytes, for a reason")
    project.plan(
        1, None, summary="3 of 9 files, 800 B", pace=pace, lag=Lag(rows=4321, bytes=5000, files=1, seconds=90.0)
    )
    project.ack(
        1,
        aligned_s=1.5,
        sync_s=2.5,
        async_s=3.5,
        read={"events": Amount(rows=1234, bytes=800, files=3)},
        received={"clean": Amount(rows=77, bytes=4000, files=1)},
        sent={"totals": Amount(rows=7, bytes=600, files=1)},
        processed=Amount(rows=55, bytes=3000, files=1),
    )
    shown = tidegate("show", "orders", "1").out
    rows = [line.split() for line in shown.splitlines()]
    assert next(row for row in rows if row[:1] == ["events"])[2:9] == ["3", "of", "9", "files,", "800", "B", "1,234"]
    assert "1.5 s 2.5 s 3.5 s stage good" in " ".join(next(row for row in rows if row[:2] == ["main", "attempt1"]))
    assert next(row for row in rows if row[:3] == ["main", "took", "clean"])[3:] == ["77", "4.0", "kB"]
    assert "of it in flight before" in shown
    assert next(row for row in rows if row[:3] == ["main", "sent", "totals"])[3:] == ["7", "600", "B"]
    assert "how much of events: at most 900 bytes, for a reason" in shown
    assert "alignment 1.50 s, sync 2.50 s" in shown
    waiting = "1 file, 4,321 rows, 5.0 kB, the oldest for 90 s"
    assert next(line for line in shown.splitlines() if line.split()[:1] == ["events"]).endswith(waiting)
    assert "oldest waiting 90.00 s" in shown
    told = explained(tidegate, 1)[1]
    assert "How much of source events: at most 900 bytes, for a reason." in told
    assert f"After its range, this waited at source events: {waiting}." in told


@pytest.mark.parametrize(("command", "id"), [("show", 99), ("explain", 99), ("show", 6)])
def test_a_checkpoint_that_is_not_there_is_a_no(history, tidegate, command, id):
    said = tidegate(command, "orders", str(id))
    assert said.code == 1
    assert f"pipeline 'orders' has no checkpoint {id}" in said.err
    assert "1 to 5" in said.err


# -- explain ---------------------------------------------------------------------------------------


def explained(tidegate, id):
    said = tidegate("explain", "orders", str(id), "--json")
    assert said.code == 0
    story = said.json
    return story, " ".join([*story["events"], *story["waits_for"], *story["changes"], story["next_step"]])


def test_explain_a_completed_checkpoint(history, tidegate):
    story, text = explained(tidegate, 3)
    assert story["waits_for"] == []
    assert "on top of checkpoint 1, by run 'by-hand'" in text
    assert "Source events reads 1 file, 20 B" in text
    assert "Job main was acknowledged by attempt attempt3" in text
    assert "'stage good', 1.2 s" in text
    assert "Its tables: good at version 1" in text


def test_explain_what_changed_since_the_base(history, tidegate):
    _, text = explained(tidegate, 3)
    assert "Setting timeout was '10 min' in checkpoint 1 and is '5 min' here." in text
    assert "code changed since checkpoint 1 (c0de → other)" in text
    story, _ = explained(tidegate, 2)
    assert story["changes"] == ["Settings and code are those of checkpoint 1."]


def test_explain_an_abort(history, tidegate):
    story, text = explained(tidegate, 2)
    assert "JOB_FAILED, one of its jobs failed for good. It counts as a failure." in text
    assert "Details: a stage failed" in text
    assert "checkpoint 3 read the same input" in text
    assert "fix the cause in the details" in story["next_step"]


@pytest.mark.parametrize("reason", ["CANCELLED", "CHECKPOINT_EXPIRED", "BASE_ABORTED", "RUN_GONE"])
def test_explain_knows_every_reason(project, tidegate, reason):
    from tidegate.cli.inspect.explain import REASONS

    project.plan(1, None)
    project.abort(1, reason, "", counts=False)
    _, text = explained(tidegate, 1)
    assert f"{reason}, {REASONS[reason]}. It does not count" in text
    assert "the next checkpoint reads the same input" in text


def test_explain_what_an_open_checkpoint_waits_for(history, tidegate):
    story, _ = explained(tidegate, 5)
    assert len(story["waits_for"]) == 1
    assert story["waits_for"][0].startswith("It waits for the ack of job main. It expires in ")
    history.ack(5)
    story, _ = explained(tidegate, 5)
    assert story["waits_for"] == ["All jobs have acknowledged it: it waits for its decision, which the next run makes."]


def test_explain_an_open_base_and_a_dead_process(project, tidegate):
    import socket

    project.plan(1, None)
    project.plan(2, 1, run=f"process:{socket.gethostname()}:999999999:1:abc")
    story, _ = explained(tidegate, 2)
    assert story["waits_for"][0] == "It waits for checkpoint 1, its base, to be decided."
    assert "Its process is gone" in story["waits_for"][2]
    assert story["next_step"] == "run the pipeline again"


def test_explain_what_is_owed(history, tidegate):
    story, text = explained(tidegate, 4)
    assert story["waits_for"] == ["It waits to be published to its tables. The next run does that first."]
    assert "tidegate doctor" in text


def test_explain_in_words(history, tidegate):
    lines = tidegate("explain", "orders", "2").out.splitlines()
    assert lines[0] == "Checkpoint 2 of orders: aborted"
    assert all(line.startswith(("- ", "Next: ")) for line in lines[1:])


def test_diff_tells_what_took_longer_and_grew(project, tidegate):
    project.complete(1, None)
    plan = project.plan(2, 1)
    project.decide(plan, project.ack(2, rows=12))
    project.publish(2)
    found = tidegate("diff", "orders", "1", "2", "--json").json
    assert found["figures"]["rows_out"] == [3, 12]
    assert found["figures"]["bytes_out"] == [2048, 2048]
    assert "state_bytes" not in found["figures"], "nothing is compared that one of them has not measured"
    lines = [line.split() for line in tidegate("diff", "orders", "1", "2").out.splitlines()]
    assert ["rows", "out", "3", "12", "+300", "%"] in lines
    assert not any(line[:2] == ["bytes", "out"] for line in lines), "what is the same is no difference"


# -- read ------------------------------------------------------------------------------------------


def test_read_a_table_as_of_each_checkpoint(history, tidegate):
    then = tidegate("read", "orders", "good", "--checkpoint", "1", "--json").json
    now = tidegate("read", "orders", "good", "--json").json
    assert (then["checkpoint"], then["version"], then["total"]) == (1, 0, 3)
    assert (now["checkpoint"], now["version"], now["total"]) == (3, 1, 6)
    assert sorted(row["id"] for row in then["rows"]) == [10, 11, 12]
    assert then["columns"] == ["id", "name"]
    text = tidegate("read", "orders", "good").out
    assert "row 3 2" in text
    assert "6 of 6 rows of good as of checkpoint 3" in text


def test_read_takes_no_more_than_asked(history, tidegate):
    assert len(tidegate("read", "orders", "good", "--limit", "2", "--json").json["rows"]) == 2
    none = tidegate("read", "orders", "good", "--limit", "0", "--json").json
    assert (none["rows"], none["total"]) == ([], 6)


def test_read_without_a_sink_lists_the_tables(history, tidegate):
    found = tidegate("read", "orders", "--json").json
    assert found["tables"] == {"good": {"table": str(history.table), "version": 1, "rows": 6}}
    assert "tidegate read orders good" in tidegate("read", "orders").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 2, "has no table of a sink 'nope'"),
        (["good", "--checkpoint", "2"], 1, "checkpoint 2 of 'orders' was aborted"),
        (["good", "--checkpoint", "4"], 1, "is not on all tables yet"),
        (["good", "--checkpoint", "5"], 1, "is not decided yet"),
        (["good", "--checkpoint", "9"], 1, "has no checkpoint 9"),
        (["good", "--checkpoint", "0"], 2, "is not a checkpoint's number"),
        (["good", "--limit", "-1"], 2, "--limit"),
    ],
)
def test_read_refuses_what_is_not_there(history, tidegate, arguments, code, message):
    said = tidegate("read", "orders", *arguments)
    assert said.code == code
    assert message in said.err
    assert said.out == ""


def test_read_of_a_pipeline_that_has_published_nothing(project, tidegate):
    said = tidegate("read", "orders")
    assert said.code == 1
    assert "published nothing yet" in said.err


def test_read_refuses_a_table_that_was_replaced(history, tidegate):
    import shutil

    import pyarrow as pa
    from deltalake import write_deltalake

    shutil.rmtree(history.table)
    write_deltalake(str(history.table), pa.table({"id": [1]}))
    write_deltalake(str(history.table), pa.table({"id": [2]}), mode="append")
    said = tidegate("read", "orders", "good")
    assert said.code == 3
    assert "is not the one that was published as version 1" in said.err


def test_read_shows_every_kind_of_value_as_json(project, tidegate):
    from datetime import UTC, date, datetime
    from decimal import Decimal

    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    from tidegate.ledger.ledger import stamp
    from tidegate.records.codec import sha256
    from tidegate.records.records import Published, PublishedTable

    values = {
        "amount": pa.array([Decimal("12.30")], pa.decimal128(12, 2)),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2)]),
        "raw": pa.array([b"\x00\xff"]),
        "part": pa.array([float("nan")]),
        "tags": pa.array([["a", None]]),
        "who": pa.array([{"name": "ä"}]),
        "none": pa.array([None], pa.string()),
    }
    write_deltalake(str(project.table), pa.table(values))
    log = project.table / "_delta_log" / f"{0:020d}.json"
    project.complete(1, None, publish=False)
    assert DeltaTable(str(project.table)).version() == 0
    table = PublishedTable(uri=str(project.table), version=0, log_hash=sha256(log.read_bytes()))
    project.ledger.create_published(Published(**stamp("p"), id=1, tables={"good": table}))
    [row] = tidegate("read", "orders", "good", "--json").json["rows"]
    assert row == {
        "amount": "12.30",
        "at": "2026-01-02T03:04:05.000006+00:00",
        "day": "2026-01-02",
        "raw": "AP8=",
        "part": "nan",
        "tags": ["a", None],
        "who": {"name": "ä"},
        "none": None,
    }
    assert "12.30" in tidegate("read", "orders", "good").out


def test_looking_changes_nothing(history, tidegate):
    def everything():
        return {
            os.path.join(base, name): os.stat(os.path.join(base, name)).st_mtime_ns
            for base, _, names in os.walk(history.folder)
            for name in names
        }

    before = everything()
    for words in (["list"], ["list", "orders"], ["show", "orders", "3"], ["read", "orders", "good"], ["config"]):
        assert tidegate(*words).code == 0
    assert everything() == before


def test_the_interval_of_a_checkpoint_is_shown_wherever_it_is(project, tidegate):
    interval = ("2026-03-01T09:00:00+00:00", "2026-03-01T10:00:00+00:00")
    project.plan(1, None, interval=interval, by_interval=True)
    shown = "2026-03-01T09:00/2026-03-01T10:00"
    assert shown in tidegate("list", "orders").out
    assert f"interval  {shown} UTC" in tidegate("show", "orders", "1").out
    assert f"data interval is {shown} UTC. Its rows replace all rows" in tidegate("explain", "orders", "1").out
    assert tidegate("list", "orders", "--json").json["checkpoints"][0]["interval"] == shown
