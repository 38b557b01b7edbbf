"""doctor: files that nothing names are told of and collected, files that something names and are gone are damage."""

from __future__ import annotations

import os
import time

import pytest

from tests.kit import forks
from tests.kit.forks import FORK, Compacting, Died, Run, contents, dying
from tidegate.connectors.sink import Staging
from tidegate.delta import missing_files
from tidegate.lifecycle import savepoint
from tidegate.verify import files as verify_files
from tidegate.verify import tables as verify_tables

shop = forks.shop
CODE = "shop:orders"


def doctor(tidegate, *more, code=0):
    """Findings by check."""
    said = tidegate("doctor", CODE, *more, "--json")
    found = {f["check"]: f for f in said.json["findings"] if f["area"] == "orders"}
    assert [f for f in found.values() if f["state"] == "bad"] == [] or code
    return found


def old(path):
    os.utime(path, (time.time() - 90_000,) * 2)


def test_a_pipeline_that_has_lived_has_no_orphans(shop, tidegate):
    lived = Run("orders", num_retained="2")
    for _ in range(3):
        lived.checkpoint()
    found = doctor(tidegate)
    for check in ("side files", "left over in state.totals"):
        assert (found[check]["state"], found[check]["detail"]) == ("ok", "none without a use")
    assert found["files of state.totals"]["detail"] == "6 that checkpoints name are there"
    assert found["files of good"]["detail"] == "6 of this pipeline's are there"


def test_side_files_that_nothing_names_are_collected_once_nobody_can_be_about_to(shop, folder, tidegate):
    ledger = folder / "ledger" / "orders"
    for path in (ledger / "blobs").iterdir():
        old(path)  # all of them are named
    before = contents(ledger)
    orphan = ledger / shop.ledger.put_blob(b"by somebody who died").path
    assert doctor(tidegate)["side files"]["state"] == "ok", "its record may still come"
    old(orphan)
    found = doctor(tidegate)["side files"]
    assert (found["state"], orphan.name in found["detail"]) == ("note", True)
    assert doctor(tidegate, "--repair")["side files"]["detail"].startswith("removed 1")
    assert contents(ledger) == before


def test_files_of_states_that_no_checkpoint_names_are_collected_but_for_what_is_open(shop, tidegate):
    open_id = shop.coordinator.trigger("open").plan.id
    context = shop.coordinator.context("state.totals")
    paths = [shop.state_table.local(f"{Staging(id, 'dead').folder(context)}/part-0.parquet") for id in (1, open_id)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    found = doctor(tidegate)["left over in state.totals"]
    assert (found["state"], "1 that nothing names" in found["detail"], "00000001/dead" in found["detail"]) == (
        "note",
        True,
        True,
    )
    assert doctor(tidegate, "--repair")["left over in state.totals"]["detail"].startswith("removed 1")
    assert [path.exists() for path in paths] == [False, True]
    assert shop.remembered() == [1, 2, 3]
    assert doctor(tidegate)["left over in state.totals"]["state"] == "ok"


STEPS = {
    "tables": (verify_tables, "check_tables"),
    "state": (verify_files, "open_table"),
    "live": (verify_files, "live_files"),
}


@pytest.mark.parametrize(("written", "published"), [("tables", "tables"), ("state", "state"), ("tables", "live")])
def test_the_files_of_a_checkpoint_that_is_made_meanwhile_are_not_taken_for_left_over(
    shop, tidegate, monkeypatch, written, published
):
    """The pipeline lives on meanwhile: a job ends, its checkpoint is published, between any two of the looks."""
    made = []
    acts = [(written, lambda: made.append(shop.acked())), (published, lambda: shop.completed(made[0]))]

    def behind(step, real):
        def look(*args):
            seen = real(*args)
            while acts and acts[0][0] == step:
                acts.pop(0)[1]()
            return seen

        return look

    for step in {written, published}:
        module, name = STEPS[step]
        monkeypatch.setattr(module, name, behind(step, getattr(module, name)))
    found = doctor(tidegate, "--repair")
    monkeypatch.undo()
    assert made == [4]
    assert found["left over in state.totals"]["detail"] == "none without a use"
    assert not missing_files(shop.state_table, [each.file for each in shop.state(4).files])
    shop.checkpoint()
    assert shop.remembered() == [1, 2, 3, 4, 5]


def test_what_retention_removes_meanwhile_is_no_damage(folder, tidegate, monkeypatch):
    """Between the look at the records and the look at the files, checkpoint 2 goes, and what only it had named."""
    (folder / "shop.py").write_text(forks.CODE)
    lived = Compacting("orders", num_retained="2")
    for act in (lived.checkpoint, lived.checkpoint, lived.merge):
        act()
    real = verify_tables.check_tables
    monkeypatch.setattr(verify_tables, "check_tables", lambda *args: (lived.checkpoint(), real(*args))[1])
    found = doctor(tidegate)
    assert lived.ledger.ids() == [3, 4]
    assert found["files of state.totals"]["state"] == "ok"


def test_a_side_file_whose_job_is_still_at_work_is_never_taken_for_left_over(shop, folder, tidegate):
    """A job that takes days writes its side files long before the ack that names them."""
    plan = shop.coordinator.trigger("takes days").plan
    ledger = folder / "ledger" / "orders"
    written = ledger / shop.ledger.put_blob(b"of a state").path
    old(written)
    os.utime(ledger / "checkpoints" / f"{plan.id:08d}" / "plan.json", (time.time() - 100_000,) * 2)
    assert doctor(tidegate, "--repair")["side files"]["detail"] == "none without a use"
    assert written.exists()
    shop.coordinator.abort(plan.id, "CANCELLED")
    assert doctor(tidegate, "--repair")["side files"]["detail"].startswith("removed 1")


def test_what_was_kept_for_its_name_is_no_hole_in_the_log_once_the_name_is_gone(folder, tidegate):
    """It goes with the next clean-up; nothing is wrong until then."""
    (folder / "shop.py").write_text(forks.CODE)
    lived = Run("orders", num_retained="1")
    lived.checkpoint()
    savepoint.create(lived.ledger, "good", 1, "ann")
    for _ in range(3):
        lived.checkpoint()
    savepoint.dispose(lived.ledger, "good")
    assert lived.ledger.ids() == [1, 4]
    assert doctor(tidegate)["ledger"]["state"] == "ok"
    lived.checkpoint()
    assert lived.ledger.ids() == [5]


def test_whoever_died_between_an_entry_and_its_index_has_left_no_damage(shop, folder, tidegate):
    """What came of it is an abort, which needs no index: its run gets another checkpoint."""
    plan = shop.coordinator.trigger("died").plan
    for path in (folder / "ledger" / "orders" / "runs").glob(f"*/{plan.id:08d}"):
        path.unlink()
    shop.coordinator.abort(plan.id, "RUN_GONE")
    assert doctor(tidegate)["ledger"]["state"] == "ok"


def test_files_that_a_checkpoint_names_and_that_are_gone_are_damage(shop, tidegate):
    lost = shop.state(1).files[0].file.path
    shop.state_table.local(lost).write_bytes(b"short")
    found = doctor(tidegate, code=1)["files of state.totals"]
    assert lost in found["detail"]
    assert "tidegate recover" in found["help"]


def test_files_that_a_table_shows_and_that_are_gone_are_damage(shop, folder, tidegate):
    lost = next((folder / "tables" / "good").rglob("00000002/*/*.parquet"))
    lost.unlink()
    found = doctor(tidegate, code=1)["files of good"]
    assert ("1 that the table shows" in found["detail"], lost.name in found["detail"]) == (True, True)


def test_a_fork_that_was_broken_off_is_told_of(shop, tidegate, monkeypatch):
    with monkeypatch.context() as patched:
        dying(patched, 5, landed=False)
        with pytest.raises(Died):
            tidegate(*FORK)
    found = doctor(tidegate)["forks"]
    assert "makes a fork of checkpoint 2" in found["detail"]
    assert "give the same command again" in found["help"]
    assert tidegate(*FORK).code == 0
    assert "forks" not in doctor(tidegate)


def test_the_pin_of_a_fork_that_was_finished_from_a_copy_is_let_go_of(shop, folder, tidegate, monkeypatch):
    """The copy does not say where the old pipeline is; from there it can be seen that the fork is whole."""
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2", "--copy", "copies/good")
    with monkeypatch.context() as patched:
        dying(patched, 4, landed=False)
        with pytest.raises(Died):
            tidegate(*FORK)
    assert len(shop.ledger.pins()) == 1
    assert "makes a fork of checkpoint 2" in doctor(tidegate)["forks"]["detail"]
    assert tidegate("fork", "copies/good", "--as", "shop:trial").code == 0
    found = doctor(tidegate)["forks"]
    assert (found["state"], "finished from a copy" in found["detail"]) == ("note", True)
    assert doctor(tidegate, "--repair")["forks"]["detail"].startswith("let go")
    assert shop.ledger.pins() == []
