"""doctor: finds each kind of damage, says what to do, repairs only what cannot count."""

import os
import shutil
from pathlib import Path

import pytest

from tidegate.connectors.sink import SinkContext, Staging
from tidegate.delta import Location, open_table
from tidegate.delta.log.snapshot import _cache
from tidegate.history.table import remember
from tidegate.records.records import Handle

SHOP = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("orders")
pipeline.source("events", Generator(rows=1)).sink("good", DeltaAppend("tables/good"))
"""


@pytest.fixture
def history(project):
    """1 completed, 2 aborted, 3 completed on 1; the pipeline's code is shop.py."""
    (project.folder / "shop.py").write_text(SHOP)
    project.complete(1, None)
    project.plan(2, 1)
    project.abort(2)
    project.complete(3, 1)
    return project


def findings(said):
    return {(f["area"], f["check"]): f for f in said.json["findings"]}


def doctor(tidegate, *arguments, code=0):
    said = tidegate("doctor", *arguments, "--json")
    assert said.code == code, said
    assert said.json["ok"] is (code == 0)
    return findings(said)


def bad(found):
    return [f["detail"] for f in found.values() if f["state"] == "bad"]


def leave_behind(project, id, attempt):
    """What an attempt at a checkpoint's job staged that nobody released."""
    uid = project.ledger.start().uid
    from tidegate.records.place import Place

    context = SinkContext("orders", uid, "good", Place(str(project.folder)))
    plan = project.ledger.entry(id).plan
    folder = project.table / Staging(id, f"{plan.attempt}-{attempt}").folder(context)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"x")
    return folder


def test_a_healthy_pipeline_has_nothing_wrong(history, tidegate):
    remember(history.ledger, {})
    found = doctor(tidegate, "shop:pipeline")
    assert {f["state"] for f in found.values()} == {"ok"}
    assert found["orders", "ledger"]["detail"] == "3 checkpoints, all records as written"
    assert found["orders", "table good"]["detail"] == f"2 versions of {history.table} are as published"
    assert found["orders", "left over for good"]["detail"] == "nothing"
    assert "Nothing is wrong." in tidegate("doctor", "orders").out


def test_without_a_name_all_pipelines_are_looked_at(history, tidegate):
    assert ("orders", "ledger") in doctor(tidegate)


def test_doctor_leaves_no_trace(history, tidegate):
    before = sorted(str(path) for path in history.folder.rglob("*") if "__pycache__" not in path.parts)
    doctor(tidegate, "shop:pipeline", "--repair")
    after = sorted(str(path) for path in history.folder.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def test_a_pipeline_that_was_never_run_is_fine(folder, tidegate):
    (folder / "shop.py").write_text(SHOP)
    found = doctor(tidegate, "shop:pipeline")
    assert found["orders", "ledger"]["detail"] == "not started yet"
    assert "the first run creates it" in found["storage", "root"]["detail"]


# -- the ledger ------------------------------------------------------------------------------------


def entry(project, id):
    return project.folder / "ledger" / "orders" / "checkpoints" / f"{id:08d}"


def tear(path: Path):
    path.write_bytes(path.read_bytes()[:40])


def edit(path: Path):
    text = path.read_text()
    path.write_text(text.replace('"created": "20', '"created": "19'))


def manifest(folder: Path) -> Path:
    return next(folder.glob("manifest-*.json"))


DAMAGE = {
    "plan torn": (lambda p: tear(entry(p, 3) / "plan.json"), "plan.json cannot be read"),
    "plan empty": (lambda p: (entry(p, 3) / "plan.json").write_bytes(b""), "it is empty"),
    "plan gone": (lambda p: (entry(p, 2) / "plan.json").unlink(), "checkpoint 2 has a folder but no plan.json"),
    "entry gone": (lambda p: shutil.rmtree(entry(p, 2)), "checkpoint 2 is missing between 1 and 3"),
    "ack torn": (lambda p: tear(entry(p, 1) / "acks" / "main.json"), "cannot be read"),
    "ack edited": (lambda p: edit(entry(p, 1) / "acks" / "main.json"), "is not the one that its manifest names"),
    "ack gone": (lambda p: (entry(p, 1) / "acks" / "main.json").unlink(), "the ack of job main is missing"),
    "manifest edited": (lambda p: edit(manifest(entry(p, 1))), "is not what was written"),
    "manifest gone": (lambda p: manifest(entry(p, 1)).unlink(), "is missing, but checkpoint 1 is completed by it"),
    "decision torn": (lambda p: tear(entry(p, 2) / "decision.json"), "cannot be read"),
    "published torn": (lambda p: tear(entry(p, 3) / "published.json"), "cannot be read"),
    "run index gone": (
        lambda p: shutil.rmtree(p.folder / "ledger/orders/runs"),
        "runs/ does not know that its run made it",
    ),
    "stray folder": (lambda p: (p.folder / "ledger/orders/checkpoints/42").mkdir(), "is no checkpoint's folder"),
    "identity gone": (lambda p: (p.folder / "ledger/orders/pipeline.json").unlink(), "pipeline.json is missing"),
    "identity renamed": (
        lambda p: edit_name(p.folder / "ledger/orders/pipeline.json"),
        "belongs to pipeline 'others'",
    ),
}


def edit_name(path: Path):
    path.write_text(path.read_text().replace('"orders"', '"others"'))


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damage_to_the_ledger_is_found_and_named(history, tidegate, damage):
    break_it, expected = DAMAGE[damage]
    break_it(history)
    said = tidegate("doctor", "shop:pipeline", "--json")
    assert said.code == 1
    details = [f["detail"] for f in said.json["findings"] if f["state"] == "bad"]
    assert any(expected in detail for detail in details), details
    assert all(f["help"] for f in said.json["findings"] if f["state"] == "bad")


def test_a_manifest_that_cannot_be_is_found(history, tidegate):
    """Whatever wrote it: each is looked at once more."""
    plan = history.plan(4, 3)
    history.ack(4)
    history.decide(plan, Handle(entry=3, sha=history.ledger.entry(3).acks["main"].handle.sha))
    assert any("checkpoint 4: job 'main' is at 3, and may not lag" in told for told in bad(doctor(tidegate, code=1)))


def test_a_side_file_that_is_not_what_was_written_is_found(history, tidegate):
    from tidegate.records.records import Payload

    blob = history.ledger.put_blob(b"[]" * 100)
    plan = history.plan(4, 3)
    from tidegate.ledger.ledger import stamp
    from tidegate.records.records import Ack, JobStats

    ack = Ack(**stamp("a4"), id=4, job="main", prev=None, sinks={"good": Payload(blob=blob)}, stats=JobStats())
    history.ledger.create_ack(ack)
    assert plan.id == 4
    (history.folder / "ledger/orders" / blob.path).write_bytes(b"?")
    found = bad(doctor(tidegate, "orders", code=1))
    assert any("its hash differs" in detail for detail in found)


# -- the tables ------------------------------------------------------------------------------------


def test_a_table_that_was_made_again_is_found(history, tidegate):
    import pyarrow as pa
    from deltalake import write_deltalake

    shutil.rmtree(history.table)
    write_deltalake(str(history.table), pa.table({"id": [1]}))
    found = doctor(tidegate, "orders", code=1)
    assert found["orders", "table good"]["detail"].endswith("version 0 is not the commit that checkpoint 1 published")


def test_a_table_that_is_gone_is_found(history, tidegate):
    shutil.rmtree(history.table)
    (found,) = bad(doctor(tidegate, "orders", code=1))
    assert "is missing: checkpoint 3 was published there" in found


def test_an_old_log_file_that_was_cleaned_up_is_only_noted(history, tidegate):
    (history.table / "_delta_log" / f"{0:020d}.json").unlink()
    assert doctor(tidegate, "orders")["orders", "table good"]["state"] == "note"


@pytest.mark.parametrize("table", ["good", "history"])
def test_a_torn_checkpoint_of_a_log_is_told_before_and_after_it_is_done_without(history, tidegate, table):
    """As long as it stands, and then until the log's next checkpoint takes its place."""
    from deltalake import DeltaTable

    remember(history.ledger, {})
    place = str(history.table) if table == "good" else f"{history.ledger.home}/history"
    DeltaTable(place).create_checkpoint()
    (torn,) = Path(place, "_delta_log").glob("*.checkpoint.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    if table == "good":
        found = doctor(tidegate, "orders", code=1)["orders", "log of good"]
        assert (found["state"], torn.name in found["detail"]) == ("bad", True)
        _cache.clear()
        assert open_table(Location(place)) is not None
    else:
        _cache.clear()
    found = doctor(tidegate, "orders")["orders", f"log of {table}"]
    assert found["state"] == "note"
    assert "no row is missing" in found["detail"]
    assert f"torn-{torn.name}" in found["detail"]
    DeltaTable(place).create_checkpoint()
    for left in Path(place, "_delta_log").glob("torn-*"):
        left.unlink()
    assert ("orders", f"log of {table}") not in doctor(tidegate, "orders")


def staged(history, id, base, size=5):
    """An acked checkpoint whose staged file has five bytes on disk."""
    path = f"tidegate/x-good/{id:08d}/a/part-0.parquet"
    file = history.table / path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"12345")
    history.plan(id, base)
    named = {"path": path, "size": size, "rows": 1, "partition": {}, "stats": "{}"}
    history.ack(id, committable={"schema": {}, "files": [named]})
    return file


def test_staged_files_of_an_open_checkpoint_are_looked_for(history, tidegate):
    file = staged(history, 4, 3)
    check = ("orders", "staged for good in checkpoint 4")
    assert doctor(tidegate, "orders")[check]["detail"] == "1 files, not published yet"
    file.unlink()
    assert "1 of 1 files are gone or changed" in doctor(tidegate, "orders", code=1)[check]["detail"]


def test_where_the_table_lies_comes_from_the_code_before_the_first_publish(project, tidegate):
    (project.folder / "shop.py").write_text(SHOP)
    staged(project, 1, None)
    check = ("orders", "staged for good in checkpoint 1")
    assert doctor(tidegate, "orders")[check]["state"] == "cannot tell"
    assert doctor(tidegate, "shop:pipeline")[check]["state"] == "ok"


def test_repair_removes_what_aborted_checkpoints_left_and_nothing_else(history, tidegate):
    dead = leave_behind(history, 2, "dead")
    slower = leave_behind(history, 3, "slower")
    counting = leave_behind(history, 3, "attempt3")
    check = ("orders", "left over for good")
    found = doctor(tidegate, "shop:pipeline")
    assert (found[check]["state"], found[check]["help"]) == ("note", "harmless; --repair removes them")
    assert "checkpoints 2" in found[check]["detail"]
    assert dead.exists()
    said = tidegate("doctor", "shop:pipeline", "--repair", "--json")
    details = [f["detail"] for f in said.json["findings"] if f["check"] == "left over for good"]
    assert details[0] == "removed 1 attempts of aborted checkpoints 2"
    assert not dead.exists()
    assert slower.exists()
    assert counting.exists()
    again = tidegate("doctor", "shop:pipeline", "--repair", "--json")
    assert not any("removed" in f["detail"] for f in again.json["findings"])


def test_explain_with_the_code_tells_of_attempts_that_lost(history, tidegate):
    leave_behind(history, 2, "dead")
    said = tidegate("explain", "shop:pipeline", "2")
    assert "Sink good also holds files of 1 attempts that do not count: plan2-dead." in said.out


# -- the machine and the storage -------------------------------------------------------------------


def test_a_missing_java_is_found(folder, tidegate, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = doctor(tidegate, code=1)
    assert found["machine", "Java"]["detail"] == "there is no java on the PATH"
    assert "install Java 17" in found["machine", "Java"]["help"]


@pytest.mark.parametrize(("text", "state"), [('openjdk version "11.0.2"', "bad"), ('openjdk version "21.0.1"', "ok")])
def test_the_version_of_java_is_looked_at(folder, tidegate, monkeypatch, text, state):
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))
    assert doctor(tidegate, code=int(state == "bad"))["machine", "Java"]["state"] == state


def test_missing_jars_are_found(folder, tidegate, monkeypatch):
    monkeypatch.setenv("TIDEGATE_JARS", str(folder))
    found = doctor(tidegate, code=1)
    assert "is not in" in found["machine", "Delta jars"]["detail"]
    assert "tidegate spark jars" in found["machine", "Delta jars"]["help"]


def test_a_remote_spark_needs_no_java_here(folder, tidegate, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    found = doctor(tidegate, "-D", "spark.remote=sc://elsewhere:15002")
    assert ("machine", "Java") not in found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_cannot_be_written_is_found(project, tidegate):
    (project.folder / "ledger").chmod(0o500)
    try:
        assert "cannot create" in doctor(tidegate, code=1)["storage", "root"]["detail"]
    finally:
        (project.folder / "ledger").chmod(0o700)


def test_a_root_that_is_a_file_is_found(folder, tidegate):
    (folder / "ledger").write_text("not a folder")
    said = tidegate("doctor", "--json")
    assert said.code == 1
    assert any(f["area"] == "storage" and f["state"] == "bad" for f in said.json["findings"])


def test_a_storage_that_overwrites_is_found(project, tidegate, monkeypatch):
    from tidegate.ledger.store import LocalStore

    def overwrite(self, path, data):
        self.replace(path, data)
        return True

    monkeypatch.setattr(LocalStore, "create", overwrite)
    found = doctor(tidegate, code=1)["storage", "root"]
    assert "lets a second file replace the first one" in found["detail"]
    assert list((project.folder / "ledger").glob("doctor-*")) == []


# -- the history -----------------------------------------------------------------------------------------


def test_a_history_that_is_behind_lost_or_damaged_is_told(history, tidegate):
    assert doctor(tidegate, "orders")["orders", "history"]["state"] == "note", "nobody has written it yet"
    remember(history.ledger, {})
    found = doctor(tidegate, "orders")["orders", "history"]
    assert (found["state"], found["detail"]) == ("ok", "3 rows, up to checkpoint 3")
    for file in Path(history.ledger.home, "history").glob("*.parquet"):
        os.truncate(file, 10)
    damaged = doctor(tidegate, "orders", code=1)["orders", "history"]
    assert "no checkpoint is harmed" in damaged["help"]


def test_a_bucket_and_the_jars_that_it_needs_are_looked_at(folder, tidegate, monkeypatch, tmp_path):
    from tests.kit.object_server import ObjectServer

    there = tmp_path / "jars"
    there.mkdir()
    monkeypatch.setattr("tidegate.spark.jars._paths", lambda jars, place: [there / jar.file_name for jar in jars])
    monkeypatch.setattr("tidegate.spark.jars.jars_folder", lambda: there)
    server = ObjectServer()
    try:
        server.begin("kept")
        login = [f"-Dstorage_options.{name}={value}" for name, value in server.options.items()]
        bucket = [*login, "-Droot=s3://bucket/ledger", "-Ddata=s3://bucket/data"]
        found = doctor(tidegate, *bucket, code=1)
        assert {check: found["storage", check]["state"] for check in ("root", "data")} == {"root": "ok", "data": "ok"}
        assert found["machine", "S3 jars"]["state"] == "bad"
        assert "tidegate spark jars --s3" in found["machine", "S3 jars"]["help"]
        there.with_name("jars-s3").mkdir()
        found = doctor(tidegate, *bucket)
        assert found["machine", "S3 jars"]["state"] == "ok"
        assert server.names == [], "it leaves no trace"
        found = doctor(tidegate, *bucket, "-Ddata=foo://bucket/data", code=1)
        assert found["storage", "data"]["state"] == "bad"
    finally:
        server.close()
