"""Defects that an independent verification found, and bugs that no test noticed then: planted again, one at a time. The
story that tells of each must fail, for the reason that it tells of.

What a simulated life can meet is planted there (tests/simulation/planted_*.py). Here is the rest: names of operators,
real files and logs, other disks, moved folders, stores that promise nothing, hundreds of tables, ways out for people.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tidegate.checkpoint import approvals, compatibility, located, manifests
from tidegate.checkpoint.manifests import allows_overtaking, lowest_ack
from tidegate.checkpoint.publishing import intervals as publish_intervals
from tidegate.connectors.delta.sink import prerewritten, upsert
from tidegate.connectors.delta.sink import restore as delta_restore
from tidegate.connectors.delta.sink import table as delta_table
from tidegate.connectors.files import source as files
from tidegate.connectors.sink import RestorePlan
from tidegate.delta import Location, Syncing, rewrite
from tidegate.delta.files import footers
from tidegate.delta.journal import Journal
from tidegate.delta.log import cleanup, commits
from tidegate.delta.log import snapshot as snapshots
from tidegate.errors import Unavailable
from tidegate.execution import loop
from tidegate.execution.job import run_job
from tidegate.execution.job.run_job import Attempt
from tidegate.history import health
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.object_store import ObjectStore
from tidegate.ledger.record_files import Records
from tidegate.lifecycle import final_cleanup, retention
from tidegate.pipeline import Stream
from tidegate.pipeline.graph.graph import Lineage
from tidegate.protocol import progress, rules
from tidegate.protocol.view import Entry
from tidegate.records.records import Json, Payload
from tidegate.sources import Files

pytestmark = pytest.mark.slow  # every story is told twice

TESTS = Path(__file__).resolve().parents[1]
Patch = pytest.MonkeyPatch


class Defect(NamedTuple):
    """How it is planted, and who must notice."""

    plant: Callable[[Patch], None]
    story: str
    """The id of a test, below tests/."""
    shows: str
    """A part of what it says then: it fails for this, not because the plant is a wrong call."""


# -- data lost or wrong without a word --------------------------------------------------------------------


def _compare_quarantines_with_the_next_one_and_pins(patch: Patch) -> None:
    """Of states and side files: tests/simulation/planted_long_life_bugs.py."""
    real = retention._clear_quarantines

    class NextOneAndPins(retention._Remaining):
        def entries(self, but: int) -> Iterator[Entry]:
            ledger = self._pipeline.ledger
            above = next((each for each in super().entries(but) if each.id > but and each.completed), None)
            spared = (ledger.entry(id) for id in sorted(retention._spared(ledger, ledger.pins()) - {but}))
            yield from (each for each in (above, *spared) if each is not None)

    def clear(coordinator: Any, entry: Entry, remaining: Any) -> None:
        real(coordinator, entry, NextOneAndPins(coordinator, remaining._low))

    patch.setattr(retention, "_clear_quarantines", clear)


def _called_by_place(patch: Patch) -> None:
    real = Stream.apply

    def apply(self: Stream, operator: Any, *others: Stream, uid: str | None = None) -> Stream:
        taken = {stage.name for stage in self.pipeline._stages}
        places = (operator.kind if number == 1 else f"{operator.kind}-{number}" for number in itertools.count(1))
        return real(self, operator, *others, uid=uid or next(name for name in places if name not in taken))

    patch.setattr(Stream, "apply", apply)


def _by_name_unless_told(patch: Patch) -> None:
    patch.setitem(Files.__init__.__kwdefaults__, "order", "name")


def _put_back_what_is_others(patch: Patch) -> None:
    """Where nothing of its own is found, the head is taken for the first commit."""
    real = delta_restore.plan_restore

    def way_back(snapshot: Any, *given: Any, **more: Any) -> RestorePlan:
        found = real(snapshot, *given, **more)
        if found.exists or not snapshot.version:
            return found
        below = delta_restore._published_version(snapshot, snapshot.version - 1)
        return RestorePlan(
            target_version=below, version=snapshot.version, foreign_commits=(f"version {snapshot.version}",)
        )

    patch.setattr(delta_table, "plan_restore", way_back)


def _what_lies_there_is_all(patch: Patch) -> None:
    patch.setattr(footers, "refuse_difference", lambda where, written, found: None)


def _nobody_counts(patch: Patch) -> None:
    patch.setattr(run_job, "refuse_unaccounted", lambda *_: None)


# -- stuck without a way out ------------------------------------------------------------------------------


def _log_checkpoints_by_delta_rs(patch: Patch) -> None:
    """Right behind a commit; nobody syncs them."""

    def made(location: Location, version: int, *_: object) -> None:
        if version == 2:
            snapshots.handle(location, version).create_checkpoint()

    patch.setattr(commits, "checkpoint_if_due", made)


class _Nothing(Exception):
    """Which nobody raises."""


def _let_go_of_no_source(patch: Patch) -> None:
    real = compatibility._sources
    patch.setattr(compatibility, "_sources", lambda graph, config, *others, **known: real(graph, {}, *others, **known))


def _stay_where_it_was(patch: Patch) -> None:
    real = files._Position.parse

    def parse(start: Any, pattern: Any, context: Any, moved_from: str | None) -> Any:
        return real(start, pattern, context, None)

    patch.setattr(files._Position, "parse", staticmethod(parse))


def _hold_once_all_jobs_are_done(patch: Patch) -> None:
    real = rules.unanswered

    def unanswered(entry: Entry) -> Any:
        return real(entry) if set(entry.plan.acks) <= set(entry.acks) else ()

    for module in (rules, approvals):
        patch.setattr(module, "unanswered", unanswered)


def _in_the_record_however_many(patch: Patch) -> None:
    real = Records.pack

    def pack(self: Records, value: Json, parts: int = 1) -> Payload:
        return real(self, value)

    patch.setattr(Records, "pack", pack)


def _where_it_was_written(patch: Patch) -> None:
    patch.setattr(located, "_located", lambda name, published, *_: published.tables[name])


# -- what no test noticed ---------------------------------------------------------------------------------


def _any_history(patch: Patch) -> None:
    """What tells whether it is the same version is its number."""
    real = prerewritten._added_since
    patch.setattr(
        prerewritten,
        "_added_since",
        lambda snapshot, ahead: real(snapshot, msgspec.structs.replace(ahead, log_hash=snapshot.log_hash)),
    )


def _whole_if_all_is_replaced(patch: Patch) -> None:
    real = upsert.still_valid

    def still_valid(snapshot: Any, ahead: Any, *given: Any) -> Any:
        return real(snapshot, msgspec.structs.replace(ahead, standing={}), *given)

    patch.setattr(upsert, "still_valid", still_valid)


def _rewritten_and_not_synced(patch: Patch) -> None:
    real = rewrite.rewrite

    def unsynced(table: Any, *given: Any) -> Any:
        with pytest.MonkeyPatch.context() as lazy:
            lazy.setattr(Location, "sync", lambda self, paths: None)
            return real(table, *given)

    patch.setattr("tidegate.connectors.delta.sink.upsert.rewrite", unsynced)


def _remove_what_was_merged_in_any_case(patch: Patch) -> None:
    real = Journal._commit

    def commit(self: Journal, snapshot: Any, new: Any, merged: Sequence[Any], stamp: Any) -> Any:
        done = real(self, snapshot, new, merged, stamp)
        self.location.remove_files(file.path for file in merged)
        return done

    patch.setattr(Journal, "_commit", commit)


def _ack_whatever_the_disk_says(patch: Patch) -> None:
    real = Attempt.do

    def forgiving(part: Any) -> None:
        finish = part.finish

        def finished(*given: Any) -> None:
            with contextlib.suppress(Unavailable):
                finish(*given)

        part.finish = finished

    def do(self: Attempt, *given: Any) -> Any:
        forgiving(self.operating)
        forgiving(self.exchange)
        return real(self, *given)

    patch.setattr(Attempt, "do", do)


def _acks_below_a_rollback_count(patch: Patch) -> None:
    """R4."""
    patch.setattr(progress, "_counting", lambda lineage: list(lineage))


def _read_on_below_a_rollback(patch: Patch) -> None:
    """R4."""

    def all_below(ledger: Ledger, entry: Entry | None, base: Entry | None) -> list[Entry]:
        found: list[Entry] = []
        if entry is None or base is None or not allows_overtaking([entry, base]):
            return found
        at: Entry | None = base
        low: int | None = None
        while at is not None:
            if at.manifest is not None and low is None:
                low = lowest_ack(at)
            if at.plan.base is None or (low is not None and at.id <= low):
                break
            at = ledger.entry(at.plan.base)
            if at is not None:
                found.append(at)
        return found

    patch.setattr(manifests.ancestors, "__code__", all_below.__code__)  # whoever has imported it already


def _claim_without_another_look(patch: Patch) -> None:
    real = final_cleanup._claim

    def claim(ledger: Ledger, last: Entry, ended: Entry) -> bool:
        return real(ledger, last, ended) or ledger.discarded() is not None

    patch.setattr(final_cleanup, "_claim", claim)


# ------------------------------------------------------------------------------------------------------------


def _read_once_what_remains(patch: Patch) -> None:
    class ReadOnce(retention._Remaining):
        """Those that existed when it began: while they are read, others retire them and make new ones."""

        def entries(self, but: int) -> Iterator[Entry]:
            for id in self.ids(but):
                if (entry := self._decided.get(id) or self._pipeline.real_entry(id)) is not None:
                    yield entry

    patch.setattr(retention, "_Remaining", ReadOnce)


CHECKPOINT = "unit/checkpoint/test_"
AHEAD = "unit/connectors/delta/test_prerewritten.py"

DEFECTS = {
    "files of a quarantine are compared with the next one and pins": Defect(
        _compare_quarantines_with_the_next_one_and_pins,
        "unit/lifecycle/test_retention.py::test_a_row_that_was_released_on_a_line_that_was_left_waits_for_those_behind_the"
        "_rollback",
        "00000003",
    ),
    "what remains is read once": Defect(
        _read_once_what_remains,
        "unit/lifecycle/test_retention.py::test_a_side_file_that_is_passed_on_while_others_are_read_stays",
        "is missing",
    ),
    "an operator is called by its place": Defect(
        _called_by_place,
        "unit/pipeline/test_state_compatibility.py::test_an_operator_without_a_uid_is_not_called_by_its_place",
        "'aggregate' != 'aggregate-rows-k'",
    ),
    "whose rows they are is no part of a state's meaning": Defect(
        lambda patch: patch.setattr(Lineage, "sources", lambda self, name: []),
        "unit/pipeline/test_state_compatibility.py::test_a_uid_that_is_given_to_another_operator_does_not_take_over_the_state",
        "its rows come from other, and came from rows",
    ),
    "files are read by name unless told otherwise": Defect(
        _by_name_unless_told,
        "unit/connectors/files/test_files_planning.py::test_by_default_each_new_file_is_read_whatever_its_name[kept0]",
        "fg.json",
    ),
    "what is passed by is not told": Defect(
        lambda patch: patch.setattr(files, "_describe_passed_over", lambda *_: None),
        "unit/connectors/files/test_files_planning.py::test_by_name_a_late_file_is_not_read_and_each_plan_says_so",
        "None is not None",
    ),
    "explain says well": Defect(
        lambda patch: patch.setattr(health, "_skipping", lambda seen: None),
        "unit/cli/test_explain_remedies.py::test_a_file_that_the_order_of_names_has_passed_by",
        "well",
    ),
    "a table of others is put back": Defect(
        _put_back_what_is_others,
        "unit/cli/test_rollback.py::test_a_table_of_others_to_which_it_has_given_nothing_yet_is_left_alone",
        "'totals'",
    ),
    "what lies in the folder is all that was written": Defect(
        _what_lies_there_is_all,
        "unit/execution/test_accounting.py::test_what_was_written_and_lies_in_another_folder_is_missed",
        "DID NOT RAISE",
    ),
    "nobody counts the rows of a stream": Defect(
        _nobody_counts,
        "unit/execution/test_accounting.py::test_a_checkpoint_of_which_rows_are_elsewhere_is_not_completed",
        "DID NOT RAISE",
    ),
    "a checkpoint of the log is named before it is durable": Defect(
        _log_checkpoints_by_delta_rs,
        "unit/delta/test_checkpoints.py::test_a_checkpoint_of_the_log_is_durable_before_anything_names_it",
        "False) is not in list",
    ),
    "a torn checkpoint of the log is the end": Defect(
        lambda patch: patch.setattr(snapshots, "do_without_torn", lambda location: False),
        "unit/delta/test_checkpoints.py::test_publishing_continues_after_a_power_loss_tore_the_checkpoint_of_the_log",
        "is truncated",
    ),
    "one interval holds back all others": Defect(
        lambda patch: patch.setattr(publish_intervals, "Invalid", _Nothing),
        f"{CHECKPOINT}intervals.py::test_an_interval_that_cannot_be_replaced_holds_back_no_other",
        "which rows are to be replaced cannot be told",
    ),
    "nobody can let go of a table": Defect(
        lambda patch: patch.setattr(rules, "last_abandoning_rollback", lambda view, table: 0),
        f"{CHECKPOINT}removed_sinks.py::test_the_first_checkpoint_of_a_table_that_can_never_be_made_has_a_way_out",
        "table b can never be created",
    ),
    "no source can ever be removed": Defect(
        _let_go_of_no_source,
        "unit/cli/test_check.py::test_a_source_is_let_go_of_when_that_is_allowed",
        "a source would then begin at its beginning",
    ),
    "a folder can never be renamed": Defect(
        _stay_where_it_was,
        "unit/connectors/files/test_files_planning.py::test_a_folder_may_be_renamed_if_that_is_said[landing]",
        "the folder of the pattern is now",
    ),
    "a hold counts only once all jobs are done": Defect(
        _hold_once_all_jobs_are_done,
        f"{CHECKPOINT}approvals.py::test_a_hold_is_a_hold_whatever_other_jobs_have_done_or_have_been_passed_by"
        "[overtaken0]",
        "so nobody ends it because its process is gone",
    ),
    "payloads lie in the record, however many": Defect(
        _in_the_record_however_many,
        f"{CHECKPOINT}many_tables.py::test_six_hundred_tables_of_many_files_are_one_checkpoint",
        "with as many tables as may be it would be refused",
    ),
    "tables are read where they were when they were written": Defect(
        _where_it_was_written,
        "unit/cli/test_moved_project.py::test_a_moved_project_is_read_where_it_lies_now_and_continues[orders]",
        "TABLE_DAMAGED",
    ),
    "runs that cannot plan count nowhere": Defect(
        lambda patch: patch.setattr(loop, "record_failed_plan", lambda *_: None),
        "unit/lifecycle/test_control.py::test_runs_that_cannot_plan_tell_the_hooks_once_there_are_more_than_are_tolerated",
        "NO_FOLDER",
    ),
    "a store is taken at its word": Defect(
        lambda patch: patch.setattr(ObjectStore, "refuse_unsafe", lambda self: None),
        "unit/ledger/test_conditional_put.py::test_nor_does_a_run_make_a_checkpoint_there[ignored]",
        "DID NOT RAISE",
    ),
    "what an upsert writes anew is not synced": Defect(
        _rewritten_and_not_synced,
        "unit/connectors/delta/test_upsert_durable.py::test_rewritten_files_are_synced_before_the_log_names_them[order_by]",
        "/merged-",
    ),
    "what was rewritten ahead counts, whatever came since": Defect(
        lambda patch: patch.setattr(prerewritten, "_added_since", lambda snapshot, ahead: set()),
        f"{AHEAD}::test_a_file_that_came_since_is_looked_at[an order counts]",
        "(60, 10, 'foreign')",
    ),
    "what was rewritten ahead is of another history": Defect(
        _any_history,
        f"{AHEAD}::test_another_history_of_the_same_length_is_found_out[the later checkpoint counts]",
        "(1, 1, 'again')",
    ),
    "what was rewritten ahead is not looked for": Defect(
        lambda patch: patch.setattr(prerewritten, "missing_files", lambda location, files: []),
        f"{AHEAD}::test_a_file_that_was_written_ahead_and_is_damaged_is_no_loss[the later checkpoint counts-gone]",
        "/ahead/",
    ),
    "only files that are replaced decide by an order": Defect(
        _whole_if_all_is_replaced,
        f"{AHEAD}::test_a_late_row_counts_once_the_newer_one_is_gone",
        "(4, 5, 'late')",
    ),
    "a journal removes what it merged in a commit that was lost": Defect(
        _remove_what_was_merged_in_any_case,
        "unit/delta/test_journal.py::test_a_commit_that_was_lost_removes_only_its_own_file",
        "is not a readable Parquet file",
    ),
    "a state is told before its files are durable": Defect(
        lambda patch: patch.setattr(Syncing, "finish", lambda self: None),
        "unit/state/test_durable.py::test_what_cannot_be_made_durable_is_no_state",
        "DID NOT RAISE",
    ),
    "a job acks whatever the disk says": Defect(
        _ack_whatever_the_disk_says,
        "unit/state/test_durable.py::test_there_is_no_ack_before_all_is_durable",
        "DID NOT RAISE",
    ),
    "old logs go on their first day": Defect(
        lambda patch: patch.setattr(cleanup, "YOUNG_S", 0.0),
        "unit/delta/test_cleanup.py::test_what_is_young_stays_for_whoever_sleeps_there[23]",
        "oldest first",
    ),
    "a day keeps what is claimed already": Defect(
        lambda patch: patch.setattr(Ledger, "is_retained", lambda self, id: True),
        "unit/lifecycle/test_retention_by_age.py::test_what_retention_has_claimed_is_not_kept_for_its_day",
        "assert not True",
    ),
    "an answer is lost, and what followed from it is not": Defect(
        lambda patch: patch.setattr(approvals, "sync_answers", lambda ledger, entry: None),
        "simulation/test_found_races.py::test_what_was_said_survives_a_power_loss_if_what_follows_from_it_does",
        "checked",
    ),
    "acks below a rollback count": Defect(
        _acks_below_a_rollback_count,
        f"{CHECKPOINT}overtaking_cases.py::test_nobody_reads_what_lies_below_a_rollback_and_nothing_of_it_counts",
        "assert 2 == 1",
    ),
    "what lies below a rollback is read": Defect(
        _read_on_below_a_rollback,
        f"{CHECKPOINT}overtaking_cases.py::test_nobody_reads_what_lies_below_a_rollback_and_nothing_of_it_counts",
        "== []",
    ),
    "the final cancel looks for pins once": Defect(
        _claim_without_another_look,
        "unit/cli/test_retention_on_cancel.py::test_a_name_that_comes_just_before_the_tombstone_keeps_it_all",
        "[] != [1, 2, 3]",
    ),
}


class Heard:
    """What became of each story."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []
        """What each says: the lines of its report that begin with an E."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.failed.append("\n".join([f"{report.nodeid}, {report.when}", *said]))
        elif report.when == "call":
            self.passed.append(report.nodeid)


def played(folder: Path, *stories: str) -> Heard:
    """In this process: what is patched here, is patched there."""
    heard = Heard()
    without = ("cacheprovider", "faulthandler", "terminalreporter", "threadexception", "unraisableexception", "xdist")
    options = ["-s", "-o", "addopts=--import-mode=importlib", f"--basetemp={folder}"]
    options += [f"-pno:{name}" for name in without]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytest.main([*options, *(str(TESTS / story) for story in stories)], plugins=[heard])
    return heard


@pytest.fixture(scope="module")
def unplanted(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """All stories as the code is. First, so that nothing is imported while something is planted, and keeps that."""
    return played(tmp_path_factory.mktemp("unplanted"), *dict.fromkeys(defect.story for defect in DEFECTS.values()))


def test_without_a_defect_every_story_holds(unplanted: Heard) -> None:
    assert unplanted.failed == []
    told = {each.partition("[")[0].rpartition("::")[2] for each in unplanted.passed}
    assert told == {defect.story.partition("[")[0].rpartition("::")[2] for defect in DEFECTS.values()}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_noticed(name: str, unplanted: Heard, tmp_path: Path, monkeypatch: Patch) -> None:
    defect, before = DEFECTS[name], set(sys.modules)
    with monkeypatch.context() as patch:
        defect.plant(patch)
        heard = played(tmp_path / "played", defect.story)
    assert heard.failed, f"{defect.story} goes by, and nobody notices"
    assert all(defect.shows in said and ", call\n" in said for said in heard.failed), "\n".join(heard.failed)
    imported = set(sys.modules) - before - {"tests.conftest"}  # pytest itself drops that one and imports it again
    own = [name for name in imported if name.startswith(("tests", "tidegate"))]
    assert own == [], "imported while it was planted, so they keep it"
