"""Publishing: any process, any time, as often as it likes; each table by itself and in order."""

import pytest

from tests.kit.faults import Fault
from tests.kit.toy_world import quietly
from tests.kit.toys import ToyCommit, ToySink
from tidegate import seams
from tidegate.checkpoint.publishing.table_mismatch import MAX_LOST_RACES
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.ledger import Ledger
from tidegate.records.records import LatestHint


def foreign(world, table):
    world.tables[table].commits.append(ToyCommit("somebody else", None, ()))


# -- the rule --------------------------------------------------------------------------------------------


def test_publishing_again_changes_nothing(world):
    world.checkpoint("one", rows=3)
    for _ in range(3):
        report = world.coordinator().publish()
        assert (report.published, report.stuck, report.unpublished) == ({}, {}, 0)
    world.exact()


def test_an_empty_log_owes_nothing(world):
    report = world.coordinator().publish()
    assert (report.published, report.stuck, report.upto) == ({}, {}, 0)


def test_a_checkpoint_without_rows_for_a_table_leaves_it_alone(world):
    world.sinks = {"a": 0, "even": 2}
    world.bound = 1
    for n in range(4):
        world.checkpoint(f"run{n}", rows=1)
    assert world.published("a") == [1, 2, 3, 4]
    assert world.published("even") == [1, 3]
    assert world.offsets("even") == [1, 3]


def test_one_look_at_the_log_is_for_all_tables(world, monkeypatch):
    """On an object store each look is several requests, and a pipeline may have a thousand tables."""
    looks = []
    view = Ledger.view
    monkeypatch.setattr(Ledger, "view", lambda self, *args, **more: (looks.append(1), view(self, *args, **more))[1])
    needed = {}
    for number, sinks in enumerate(("a", "ab", "abcdef"), 1):
        world.sinks = dict.fromkeys(sinks, 0)
        world.decided(f"run {number}", rows=3)
        looks.clear()
        world.coordinator().publish()
        needed[len(sinks)] = len(looks)
    assert world.published("f") == [3]
    assert len(set(needed.values())) == 1, needed


def test_other_writers_of_a_table_are_no_obstacle(world):
    foreign(world, "a")
    world.checkpoint("one", rows=3)
    foreign(world, "a")
    world.checkpoint("two", rows=3)
    assert [commit.id for commit in world.tables["a"].commits] == [None, 1, None, 2]


def test_losing_the_race_for_a_version_means_reading_everything_again(world):
    world.decided("one", rows=3)
    world.weather.then["commit 1 on a"] = lambda: foreign(world, "a")
    world.coordinator().publish()
    assert [commit.id for commit in world.tables["a"].commits] == [None, 1]


def test_another_publisher_in_between_means_there_is_nothing_left_to_do(world):
    world.decided("one", rows=3)
    world.weather.then["commit 1 on a"] = lambda: world.coordinator().publish()
    report = world.coordinator().publish()
    assert report.published == {}, "the other one did it all"
    world.exact()


def test_a_table_that_somebody_commits_to_without_a_pause_is_left_for_later(world, monkeypatch):
    world.decided("one", rows=3)

    class Busy(ToySink):
        def publish(self, publication, head, context):
            if self.name == "a":
                foreign(world, "a")
            return super().publish(publication, head, context)

    monkeypatch.setattr("tests.kit.toy_world.ToySink", Busy)
    report = world.coordinator().publish()
    assert report.stuck["a"].reason == "BUSY_TABLE"
    assert len(world.tables["a"].commits) == MAX_LOST_RACES
    assert world.published("b") == [1]


def test_a_decision_is_synced_before_it_is_acted_on(world, monkeypatch):
    """W2: or the table would show what a power loss takes back."""
    world.decided("one", rows=3)
    order = []
    ledger_type = type(world.ledger)
    settle = ledger_type.sync_decision
    monkeypatch.setattr(ledger_type, "sync_decision", lambda self, id: (order.append(id), settle(self, id)))
    world.weather.then["commit 1 on a"] = lambda: order.append("commit")
    world.coordinator().publish()
    assert order[:2] == [1, "commit"]


# -- a table that does not answer ------------------------------------------------------------------------


def test_a_table_that_does_not_answer_holds_back_only_itself(world):
    world.weather.stuck.add("b")
    world.decided("one", rows=3)
    report = world.coordinator().publish()
    assert (list(report.stuck), report.unpublished) == (["b"], 1)
    assert (world.published("a"), world.published("b")) == ([1], [])
    assert world.ledger.published(1) is None, "no hint says that all is there"
    assert world.ledger.view().settled == 0
    world.checkpoint("two", rows=3)
    assert (world.published("a"), world.published("b")) == ([1, 2], [])
    world.weather.stuck.clear()
    assert world.coordinator().publish().stuck == {}
    assert world.ledger.view().settled == 2
    world.exact()


def test_too_much_unpublished_makes_triggers_wait_and_nothing_is_lost(world):
    world.weather.stuck.add("b")
    assert [world.checkpoint(f"run{n}", rows=3) for n in range(3)] == [1, 2, 3]
    with pytest.raises(Rejected) as caught:
        world.trigger("four")
    assert caught.value.reason == "TOO_MANY_UNPUBLISHED"
    assert "3 completed checkpoints are not published on 'b'" in caught.value.what
    assert caught.value.expected == "fewer than max_unpublished = 3"
    assert isinstance(caught.value.__cause__, Unavailable)
    assert world.ledger.ids() == [1, 2, 3]
    world.weather.stuck.clear()
    assert world.checkpoint("four", rows=3) == 4
    world.exact()


def test_what_has_nothing_for_the_stuck_table_does_not_count_as_waiting_for_it(world):
    world.sinks = {"a": 0, "even": 2}
    world.bound = 1
    world.weather.stuck.add("even")
    world.checkpoint("one", rows=1)
    world.checkpoint("two", rows=1)
    report = world.coordinator().publish()
    assert report.unpublished == 1, "offset 1 waits, offset 2 is not for that table"
    assert world.ledger.view().settled == 0, "and nothing behind the one that waits is settled"


def test_what_was_published_everywhere_is_not_counted_when_a_table_goes_down_later(world):
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    world.ledger.store.delete("latest.json")
    world.weather.stuck.add("b")
    assert world.coordinator().publish().unpublished == 0


# -- unclear answers -------------------------------------------------------------------------------------


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(world):
    world.decided("one", rows=3)
    world.weather.lose_answer_of.update("ab")
    assert world.coordinator().publish().stuck == {}
    assert world.weather.lose_answer_of == set()
    assert (world.published("a"), world.published("b")) == ([1], [1])
    world.exact()


def test_scenario_2_published_the_answer_is_lost_the_process_too_and_the_next_one_does_not_publish_again(world):
    world.decided("one", rows=3)
    world.weather.lose_answer_of.add("a")
    world.weather.then["commit 1 on a"] = lambda: world.weather.then.update({"head of a": die})
    with pytest.raises(SystemExit):
        world.coordinator().publish()
    assert (world.published("a"), world.published("b")) == ([1], [])
    assert world.checkpoint("two", rows=3) == 2
    world.exact()


def die():
    raise SystemExit


def test_published_json_is_right_after_a_lost_answer(world):
    foreign(world, "a")
    world.decided("one", rows=3)
    world.weather.lose_answer_of.add("a")
    world.coordinator().publish()
    tables = world.ledger.published(1).tables
    assert {name: found.version for name, found in tables.items()} == {"a": 1, "b": 0}


def test_published_json_says_where_each_table_stood_then(world):
    world.sinks = {"a": 0, "even": 2}
    world.bound = 1
    for n in range(3):
        world.checkpoint(f"run{n}", rows=1)
        foreign(world, "a")
    versions = [{name: found.version for name, found in world.ledger.published(id).tables.items()} for id in (1, 2, 3)]
    assert versions == [{"a": 0, "even": 0}, {"a": 2, "even": 0}, {"a": 4, "even": 1}]


def test_published_json_rather_leaves_a_table_out_than_say_an_older_version(world, monkeypatch):
    """The answer was lost, and the table's history does not tell any more: readers must not get old rows as new."""
    world.checkpoint("one", rows=3)
    world.decided("two", rows=3)
    world.weather.lose_answer_of.add("a")
    monkeypatch.setattr(ToySink, "locate", lambda self, id, context: None)
    world.coordinator().publish()
    assert set(world.ledger.published(2).tables) == {"b"}


def test_a_hint_that_cannot_be_found_out_is_told_later_and_holds_up_nobody(world):
    world.decided("one", rows=3)
    world.weather.lose_answer_of.add("a")
    world.weather.lose_locate = True
    report = world.coordinator().publish()
    assert (report.stuck, report.unpublished) == ({}, 0)
    assert world.ledger.published(1) is None
    assert world.checkpoint("two", rows=3) == 2
    world.weather.lose_locate = False
    world.coordinator().publish()
    assert world.ledger.published(1).tables["a"].version == 0
    assert world.ledger.view().settled == 2


@pytest.mark.parametrize(
    "point", ["S10.publish.before", "S10.publish.after", "S11.published.before", "S11.published.after"]
)
def test_a_publisher_that_dies_anywhere_leaves_the_rest_to_the_next(world, point):
    for nth in (1, 2):
        id = world.decided(f"{point}{nth}", rows=3)
        with seams.installed(Fault(point, "E", nth=nth).installed()):
            quietly(lambda: world.coordinator().publish())
        world.coordinator().publish()
        assert world.ledger.published(id) is not None
        assert world.ledger.view().settled == id
        world.exact()


# -- damage ----------------------------------------------------------------------------------------------


def damaged(world, table, reason="TABLE_GONE"):
    with pytest.raises(Corrupt) as caught:
        world.coordinator().publish()
    assert caught.value.reason == reason
    named, way_on = {"TABLE_GONE": ("table", "--leave"), "TABLE_DAMAGED": ("sink", "tidegate doctor")}[reason]
    assert f"{named} {table!r}" in caught.value.what
    assert way_on in caught.value.help
    return caught.value


def test_a_table_that_was_dropped_is_damage_not_empty(world):
    """Scenario 5, for the publisher."""
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    world.tables.tables.pop("b")
    assert "is missing: checkpoint 2 was published there" in damaged(world, "b").what
    with pytest.raises(Corrupt):
        world.trigger("three")
    assert world.ledger.ids() == [1, 2], "nothing is planned on top of it"


def test_the_first_and_only_checkpoint_of_a_dropped_table_cannot_be_published_again(world):
    world.checkpoint("one", rows=3)
    world.tables.tables.pop("b")
    with pytest.raises(Corrupt) as caught:
        world.coordinator().publish()
    assert caught.value.reason == "TABLE_GONE"


def test_a_last_commit_that_a_power_loss_took_from_the_table_is_made_again(world):
    """Its files were durable before the ack, and the log names them."""
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    world.tables["b"].commits.pop()
    world.coordinator().publish()
    world.exact()


def test_a_table_that_was_set_back_further_is_damage(world):
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    del world.tables["b"].commits[1:]
    assert "checkpoint 3 follows 2, the table holds 1" in damaged(world, "b", "TABLE_DAMAGED").what


def test_a_table_that_is_ahead_of_the_log_is_damage(world):
    """The ledger was restored from an old copy."""
    world.checkpoint("one", rows=3)
    context = world.coordinator().context("b")
    world.tables["b"].commits.append(ToyCommit(context.app_id, 7, ()))
    assert "holds checkpoint 7, the log ends at 1" in damaged(world, "b", "TABLE_DAMAGED").what


def test_damage_of_one_table_does_not_hold_back_the_others(world):
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    world.decided("three", rows=3)
    world.tables.tables.pop("a")
    damaged(world, "a")
    assert world.published("b") == [1, 2, 3]
    assert world.ledger.view().settled == 2


def test_damage_is_told_even_if_others_commit_to_the_table_all_the_time(world, monkeypatch):
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    world.tables.tables.pop("a")
    head = ToySink.head
    monkeypatch.setattr(ToySink, "head", lambda self, context: (foreign(world, self.name), head(self, context))[1])
    damaged(world, "a", "TABLE_DAMAGED")  # by then the others have made a table of that name


def test_a_table_that_others_made_again_is_damage_also_after_the_first_checkpoint(world):
    """What was staged is gone with the former table: that is no VACUUM."""
    world.checkpoint("one", rows=3)
    world.tables.tables.pop("b")
    foreign(world, "b")
    told = damaged(world, "b", "TABLE_DAMAGED")
    assert "checkpoint 1 was published there, and the table holds None" in told.what
    assert "`tidegate rollback MODULE:PIPELINE --to 1 --leave b`" in told.help
    assert "tidegate mark" not in told.help, "a Delta table has none"


def test_staged_files_that_somebody_removed_are_damage(world):
    """Scenario 10 at this level: a VACUUM by someone else."""
    world.decided("one", rows=3)
    world.tables["a"].files.clear()
    with pytest.raises(Corrupt) as caught:
        world.coordinator().publish()
    assert caught.value.reason == "STAGED_FILES_GONE"
    assert world.published("a") == []
    assert world.published("b") == [1]


def test_a_slow_publisher_whom_others_and_retention_overtook_raises_no_alarm(world, monkeypatch):
    """It has read the head and the log; meanwhile all is published and forgotten, side files included."""
    world.limit(num_retained=1)
    world.bound = 1000
    world.decided("slow", rows=800)
    assert world.ledger.entry(1).manifest.tables["a"].committables[0].blob is not None
    unpack = Ledger.unpack

    def unpack_late(self, payload):
        monkeypatch.setattr(Ledger, "unpack", unpack)
        for n in range(3):
            world.checkpoint(f"fast{n}", rows=1)
        assert world.state(1) == "gone"
        return unpack(self, payload)

    monkeypatch.setattr(Ledger, "unpack", unpack_late)
    assert world.coordinator().publish().stuck == {}
    assert world.published("a") == [1, 2, 3, 4]
    world.exact()


# -- sinks that come and go ------------------------------------------------------------------------------


def test_a_sink_that_is_added_gets_rows_from_then_on(world):
    world.checkpoint("one", rows=3)
    world.sinks["c"] = 0
    world.checkpoint("two", rows=3)
    assert world.offsets("c") == [4, 5, 6]
    world.exact("ab")


def test_a_sink_that_is_removed_while_it_is_owed_rows_is_refused_until_it_is_back(world):
    world.decided("one", rows=3)
    del world.sinks["b"]
    with pytest.raises(Invalid) as caught:
        world.coordinator().publish()
    assert caught.value.reason == "SINK_REMOVED"
    assert "has pending rows of checkpoint 1" in caught.value.what
    assert "put the sink back" in caught.value.help
    assert world.published("a") == [1], "the others get theirs"
    assert isinstance(quietly(lambda: world.trigger("two")), Invalid)
    world.sinks["b"] = 0
    assert world.checkpoint("two", rows=3) == 2
    world.exact()


def test_a_sink_whose_table_never_takes_its_rows_is_removed_by_letting_go_of_them(world, monkeypatch):
    world.weather.stuck.add("b")
    world.decided("one", rows=3)
    assert set(world.coordinator().publish().stuck) == {"b"}
    del world.sinks["b"]
    with pytest.raises(Invalid) as caught:
        world.coordinator().publish()
    assert "allow_non_restored_state" in caught.value.help

    with monkeypatch.context() as once:
        once.setattr(type(world.limits), "record", lambda self: {"allow_non_restored_state": True})
        assert world.checkpoint("two", rows=3) == 2
    assert (world.published("a"), world.ledger.view().settled) == ([1, 2], 2)
    assert world.checkpoint("three", rows=3) == 3, "once is enough"
    world.exact("a")
    world.weather.stuck.clear()
    world.sinks["c"] = 0
    assert world.checkpoint("four", rows=3) == 4
    assert world.published("c") == [4]
    world.exact("a")


def test_a_sink_that_is_removed_when_nothing_is_owed_is_just_gone_and_may_come_back(world):
    world.checkpoint("one", rows=3)
    del world.sinks["b"]
    world.checkpoint("two", rows=3)
    world.checkpoint("three", rows=3)
    assert world.published("b") == [1]
    assert world.ledger.entry(3).manifest.tables["b"].after == 1, "what the table holds is carried on"
    world.sinks["b"] = 0
    world.checkpoint("four", rows=3)
    assert world.published("b") == [1, 4]
    world.exact("a")


@pytest.mark.parametrize("since", [0, 1])
def test_a_lost_hint_does_not_bring_back_the_debts_of_a_removed_sink(world, since):
    world.checkpoint("one", rows=3)
    del world.sinks["b"]
    for n in range(since):
        world.checkpoint(f"run{n}", rows=3)
    world.ledger.store.delete("latest.json")
    assert world.checkpoint("next", rows=3) == 2 + since
    world.exact("a")


# -- hints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"", b"\0" * 40, b'{"format": 1}', b'{"format": 9}'], ids=repr)
def test_a_lost_or_damaged_hint_costs_time_only(world, damage):
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    path = world.folder / "latest.json"
    path.unlink() if damage is None else path.write_bytes(damage)
    assert world.ledger.view().settled == 0
    assert world.checkpoint("next", rows=3) == 4
    assert world.ledger.view().settled == 4
    world.exact()


def test_an_old_hint_written_late_costs_time_only(world):
    """A slow publisher writes its hint over a newer one, and what it names has been retired since."""
    world.limit(num_retained=1)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    world.ledger.hint(LatestHint(attempt="slow", created="long ago", id=2))
    assert world.state(2) == "gone"
    assert world.checkpoint("next", rows=3) == 5
    assert world.ledger.view().settled == 5
    world.exact()


def test_the_hint_never_passes_what_is_open(world):
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    world.checkpoint("one")
    world.trigger("two")
    world.trigger("three")
    world.work(2)
    world.work(3)
    world.coordinator().publish()
    assert world.ledger.view().settled == 1
    world.coordinator().complete(2)
    world.coordinator().publish()
    assert world.ledger.view().settled == 2
    world.coordinator().complete(3)
    world.coordinator().publish()
    assert world.ledger.view().settled == 3
    world.exact()
