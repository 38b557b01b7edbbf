"""retention: what `cancel`, and the end of time, leave of a pipeline; what stays; and that nothing goes by surprise."""

from __future__ import annotations

import pytest

from tests.kit import forks
from tests.kit.delta import rows_of
from tests.kit.forks import Died, Run, dying, refused
from tidegate.errors import Rejected
from tidegate.history.table import journal_of
from tidegate.ledger import Ledger
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import savepoint
from tidegate.records.records import SampledRows, Samples

shop = forks.shop
CODE = "shop:orders"
GONE = ("-D", "retention=retain_on_failure")
CANCEL = ("cancel", CODE, *GONE, "--yes")


def state_files(shop):
    """By the checkpoint that wrote it."""
    return sorted(int(path.split("/")[2]) for path, _ in shop.state_table.walk("tidegate"))


def bad(tidegate):
    return [each for each in tidegate("doctor", CODE, "--json").json["findings"] if each["state"] in ("bad", "note")]


def test_by_default_all_is_kept_and_can_be_resumed(shop, tidegate):
    assert tidegate("cancel", CODE, "--yes", "--json").json["final"] is False
    assert state_files(shop) == [1, 2, 3]
    assert tidegate("resume", "orders").code == 0
    assert shop.checkpoint() == 6
    assert shop.remembered() == [1, 2, 3, 6]


def test_for_good_samples_of_what_nobody_has_named_go_although_the_records_of_the_last_one_stay(shop, tidegate):
    rows = {"in": SampledRows(columns=["a"], rows=[["1"]])}
    for id in (2, 3):
        shop.ledger.put_samples(Samples(**stamp("x"), id=id, job="main", streams=rows))
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2")
    assert tidegate(*CANCEL).code == 0
    assert shop.ledger.ids() == [2, 3, 4]
    assert [id for id in (2, 3) if shop.ledger.samples(id, "main") is not None] == [2]


def test_for_good_what_nobody_has_named_is_removed_and_what_is_named_can_be_forked(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2")
    said = tidegate(*CANCEL, "--reason", "moved")
    assert (said.code, "are removed: 1, the files of the last one" in " ".join(said.out.split())) == (0, True)
    assert shop.ledger.ids() == [2, 3, 4], "the savepoint's, the last one's records, and the end"
    assert state_files(shop) == [1, 2]
    assert shop.remembered() == [], "its table shows nothing any more"
    assert shop.good() == [1, 2, 3], "tables are whose they are"
    assert bad(tidegate) == []
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "cancelled"
    assert "cancelled the pipeline for good" in tidegate("explain", "orders", "4").out
    for command in (
        ("resume", "orders"),
        ("suspend", "orders"),
        ("stop", "orders"),
        ("resume", "orders", "--after-end"),
    ):
        error = refused(tidegate, *command)
        assert (error["reason"], "was cancelled for good" in error["message"]) == ("STOPPED", True)
        assert "tidegate fork orders --from NAME" in error["help"]
    assert refused(tidegate, "rollback", CODE, "--to", "good", "--yes")["reason"] == "STOPPED"
    assert refused(tidegate, "savepoint", "create", "orders", "late")["reason"] == "RETIRED"
    assert refused(tidegate, "fork", "orders", "--from", "3", "--as", "shop:other")["reason"] == "RETIRED"
    assert refused(tidegate, "state", "orders", "totals")["reason"] == "RETIRED"

    assert tidegate("fork", "orders", "--from", "good", "--as", "shop:trial").code == 0
    trial = Run("trial")
    assert (trial.checkpoint(), trial.remembered()) == (3, [1, 2, 3])
    tidegate("savepoint", "dispose", "orders", "good", "--yes")
    assert tidegate(*CANCEL).code == 0, "again: what is named no longer goes, too"
    assert (shop.ledger.ids(), state_files(shop)) == ([3, 4], [])
    assert trial.remembered() == [1, 2, 3]


def test_it_asks_first_and_says_what_goes_and_what_stays(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good")
    error = refused(tidegate, "cancel", CODE, *GONE)
    assert error["message"].startswith("Cancel pipeline orders for good? retention is retain_on_failure (-D)")
    assert "Savepoints stay: good." in error["message"]
    assert shop.checkpoint() == 4


def test_a_name_that_comes_just_before_the_tombstone_keeps_it_all(shop, tidegate, monkeypatch):
    """Whoever claims the last checkpoint has looked for names, and looks again behind its claim."""
    real = Ledger.create_discarded

    def late(self, discarded):
        savepoint.create(shop.ledger, "good", None, "ann")
        real(self, discarded)

    monkeypatch.setattr(Ledger, "create_discarded", late)
    assert tidegate(*CANCEL).code == 0
    assert (state_files(shop), shop.remembered()) == ([1, 2, 3], [1, 2, 3])


def test_a_savepoint_of_the_last_checkpoint_keeps_it_all(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good")
    assert tidegate(*CANCEL).code == 0
    assert (shop.ledger.ids(), state_files(shop), shop.remembered()) == ([3, 4], [1, 2, 3], [1, 2, 3])
    assert tidegate("savepoint", "verify", CODE, "good").code == 0


def test_without_its_code_it_is_over_and_the_next_who_has_it_removes_the_rest(shop, tidegate):
    said = tidegate("cancel", "orders", *GONE, "--yes")
    assert (said.code, "by the next run, or by this" in " ".join(said.out.split())) == (0, True)
    assert shop.ledger.ids() == [1, 2, 3, 4]
    assert refused(tidegate, "resume", "orders")["reason"] == "STOPPED"
    with pytest.raises(Rejected, match="was cancelled for good"):
        shop.coordinator.trigger("late")
    assert (shop.ledger.ids(), state_files(shop)) == ([3, 4], []), "a run does it on its way"


def test_what_a_dead_process_has_not_written_down_is_in_the_history_before_it_goes(shop, tidegate):
    """Whoever published the last checkpoints died before it wrote their history; then the pipeline is cancelled."""
    history = journal_of(shop.ledger, {})
    assert history.opened() is None
    assert tidegate("cancel", "orders", *GONE, "--yes").code == 0
    with pytest.raises(Rejected, match="was cancelled for good"):
        shop.coordinator.trigger("late")
    assert shop.ledger.ids() == [3, 4]
    assert history.read(["id"])["id"].to_pylist() == [1, 2, 3]


def test_behind_a_rollback_what_it_went_back_to_goes_as_well(shop, tidegate):
    assert tidegate("rollback", CODE, "--to", "2", "--yes").code == 0
    assert tidegate(*CANCEL).code == 0
    assert (shop.ledger.ids(), shop.ledger.pins(), state_files(shop)) == ([4, 5], [], [])
    assert (shop.good(), rows_of(shop.state_table)) == ([1, 2], [])
    assert bad(tidegate) == []


def test_broken_off_the_same_command_continues_with_it(shop, tidegate, monkeypatch):
    for nth in (3, 2, 1):
        with monkeypatch.context() as patched:
            dying(patched, nth, landed=nth == 2)
            with pytest.raises(Died):
                tidegate(*CANCEL)
    assert tidegate(*CANCEL).code == 0
    assert (shop.ledger.ids()[0], state_files(shop)) == (3, [])
    assert refused(tidegate, "resume", "orders")["reason"] == "STOPPED"


@pytest.mark.parametrize(("retention", "left"), [("retain_on_failure", [1, 2, 3]), ("never_retain", [])])
def test_the_end_of_time_is_for_good_only_if_nothing_is_ever_retained(shop, tidegate, monkeypatch, retention, left):
    monkeypatch.setattr("tidegate.cli.lifecycle.stop.run_loop", lambda c, s, *rest: shop.checkpoint(drain=s[0].drain))
    said = tidegate("stop", CODE, "--drain", "-D", f"retention={retention}", "--yes", "--json")
    assert (said.code, said.json["drained"], said.json["final"]) == (0, True, not left)
    assert [id for id in state_files(shop) if id < 4] == left
    assert tidegate("resume", "orders", "--after-end").code == (0 if left else 1)


def test_a_value_that_is_none_is_refused(shop, tidegate):
    error = refused(tidegate, "cancel", "orders", "-D", "retention=some")
    assert "retain_on_cancellation" in str(error)
