"""A job's side of its channels: every order of events for up to 3 channels and 3 checkpoints, and chance beyond."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.checkpoint.barriers import (
    ALIGNED,
    Abort,
    Action,
    Alignment,
    Barrier,
    Block,
    Cancel,
    Consume,
    Ended,
    Event,
    Freed,
    Mode,
    Overtake,
    Record,
    Refuse,
    TimeUp,
    alignment,
)

UNALIGNED, TIMED = Mode.of(0), Mode.of(5.0)
MODES = {"aligned": ALIGNED, "unaligned": UNALIGNED, "timed": TIMED}


@dataclass(frozen=True)
class Seen:
    """The job, its channels, and all that has been said and done so far."""

    job: Alignment
    last: tuple[int, ...]
    """By channel, its last barrier."""
    ended: frozenset[int] = frozenset()
    taken: int = 0
    """The highest checkpoint that the job has acknowledged."""
    given_up: frozenset[int] = frozenset()
    """Checkpoints that are cancelled."""
    due: frozenset[int] = frozenset()
    overtaken: frozenset[int] = frozenset()
    recorded: frozenset[tuple[int, str]] = frozenset()
    wrong: str = field(default="", compare=False)

    def key(self) -> object:
        job = self.job
        state = (job.busy_with, tuple(sorted(job.pending.items())), job.settled, job.overtaken, job.due, job.channels)
        return state, self.last, self.ended, self.taken, self.given_up, self.due, self.recorded


def name(channel: int) -> str:
    return f"c{channel}"


def begin(channels: int, mode: Mode, aligned: frozenset[int] = frozenset()) -> Seen:
    return Seen(Alignment(frozenset(map(name, range(channels))), mode, aligned), (0,) * channels)


def possible(seen: Seen, checkpoints: int) -> Iterator[Event]:
    """All that may happen next: in each channel barriers come in order; all else at any time, once."""
    for channel, last in enumerate(seen.last):
        if last < checkpoints and channel not in seen.ended:
            yield Barrier(last + 1, name(channel))
    if seen.job.busy_with is not None:
        yield Freed()
    if len(seen.last) > 1 and not seen.ended:
        yield Ended(name(0))
    for id in range(1, checkpoints + 1):
        if not seen.given_up and id > seen.taken:
            yield Cancel(id)
        if seen.job.mode.patient and id not in seen.due and len(seen.due) < 2:
            yield TimeUp(id)


def happen(seen: Seen, event: Event) -> Seen:
    """The event, and a look at whether what is done about it is right."""
    before = seen.job
    job, actions = before.on(event)
    last, ended = seen.last, seen.ended
    if isinstance(event, Barrier):
        last = tuple(event.id if name(c) == event.channel else had for c, had in enumerate(last))
    if isinstance(event, Ended):
        ended |= {int(event.channel[1:])}
    after = replace(
        seen,
        job=job,
        last=last,
        ended=ended,
        taken=max(seen.taken, before.busy_with or 0) if isinstance(event, Freed) else seen.taken,
        given_up=seen.given_up | ({event.id} if isinstance(event, Cancel) else set()),
        due=seen.due | ({event.id} if isinstance(event, TimeUp) else set()),
        overtaken=seen.overtaken | {action.id for action in actions if isinstance(action, Overtake)},
        recorded=seen.recorded | {(a.id, a.channel) for a in actions if isinstance(a, Record)},
    )
    return replace(after, wrong=next(wrong(seen, event, actions, after), ""))


def wrong(seen: Seen, event: Event, actions: tuple[Action, ...], after: Seen) -> Iterator[str]:
    """What must not be, told from outside: by barriers, acknowledgements and cancellations alone."""
    busy = None if isinstance(event, Freed) else seen.job.busy_with
    if isinstance(event, Cancel) and event.id == busy:
        busy = None
    for action in actions:
        if isinstance(action, Consume):
            yield from wrongly_taken(seen, after, action.id, busy)
            busy = action.id
        elif isinstance(action, Overtake):
            yield from wrongly_overtaken(seen, after, action.id, busy)
        elif isinstance(action, Refuse):
            done = action.id in seen.given_up or action.id <= seen.taken or action.id == seen.job.busy_with
            if not done:
                yield f"the barrier of {action.id} is refused, which is not settled"
        elif isinstance(action, Block) and (len(after.last) == 1 or consumed(action.id, actions)):
            yield f"blocks {action.channel} at {action.id}, for which all is there"
    yield from left_undone(seen, event, actions, after)
    if after.job.busy_with != busy:
        yield f"says that it is at work on {after.job.busy_with}, and is at {busy}"
    if isinstance(event, Barrier):
        yield from left_unsaid(seen, event, actions, after)


def left_unsaid(seen: Seen, event: Barrier, actions: tuple[Action, ...], after: Seen) -> Iterator[str]:
    """What is to be said to each barrier: that it comes too late, or that its channel is to wait."""
    if event.id in after.overtaken:
        return
    if event.id in seen.given_up or event.id <= seen.taken:
        if Refuse(event.id, event.channel) not in actions:
            yield f"does not refuse the barrier of {event.id}, which is settled"
    elif not there(after, event.id) and Block(event.id, event.channel) not in actions:
        yield f"does not block {event.channel} at {event.id}, though another channel is not there yet"


def consumed(id: int, actions: tuple[Action, ...]) -> bool:
    return Consume(id) in actions


def there(after: Seen, id: int) -> bool:
    return all(last >= id for channel, last in enumerate(after.last) if channel not in after.ended)


def wrongly_taken(seen: Seen, after: Seen, id: int, busy: int | None) -> Iterator[str]:
    if busy is not None:
        yield f"takes {id} while it is at work on {busy}"
    if not there(after, id):
        yield f"takes {id}, whose barrier is not in every channel"
    if id <= after.taken or id in after.given_up or id in after.overtaken:
        yield f"takes {id}, which is settled"
    below = [n for n in range(after.taken + 1, id) if n not in after.given_up | after.overtaken and there(after, n)]
    if below and any(last >= below[0] for last in after.last):
        yield f"takes {id} before {below[0]}"


def wrongly_overtaken(seen: Seen, after: Seen, id: int, busy: int | None) -> Iterator[str]:
    mode = after.job.mode
    if not mode.overtaking or id in after.job.aligned:
        yield f"goes past the job with {id}, which is to be aligned"
    if mode.patient and id not in after.due:
        yield f"goes past the job with {id} before its time is up"
    if busy is None or busy >= id:
        yield f"goes past the job with {id}, though it is at work on {busy}"
    if id in after.given_up or id in seen.overtaken:
        yield f"goes past the job with {id}, which is settled"


def left_undone(seen: Seen, event: Event, actions: tuple[Action, ...], after: Seen) -> Iterator[str]:
    """What has to be done as soon as it can be."""
    job, mode = after.job, after.job.mode
    if isinstance(event, Cancel) and (event.id > after.taken and event.id not in seen.overtaken):
        if Abort(event.id) not in actions:
            yield f"does not pass on that {event.id} is cancelled"
        if job.busy_with == event.id:
            yield f"goes on with {event.id}, which is cancelled"
    open_ones = [n for n in (1, 2, 3) if n > after.taken and n not in after.given_up | after.overtaken]
    begun = [n for n in open_ones if any(last >= n for c, last in enumerate(after.last))]
    if job.busy_with is None and begun and there(after, begun[0]):
        yield f"does not take {begun[0]}, which is all there"
    if job.busy_with is not None and mode.overtaking:
        for n in begun:
            now = not mode.patient or n in after.due
            if n > job.busy_with and n not in job.aligned and now:
                yield f"{n} waits for a job that is at work on {job.busy_with}"
    for n in after.overtaken - after.given_up:
        for channel, last in enumerate(after.last):
            if last >= n and (n, name(channel)) not in after.recorded and channel not in after.ended:
                yield f"what {name(channel)} holds up to {n} is not recorded"


def explore(channels: int, checkpoints: int, mode: Mode, aligned: frozenset[int] = frozenset()) -> tuple[int, str]:
    """(states, what went wrong first) over every order of events."""
    first = begin(channels, mode, aligned)
    known, queue = {first.key()}, [first]
    while queue:
        seen = queue.pop()
        for event in possible(seen, checkpoints):
            after = happen(seen, event)
            if after.wrong:
                return len(known), f"{event}: {after.wrong}"
            if after.key() not in known:
                known.add(after.key())
                queue.append(after)
    return len(known), ""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_order_of_events(mode: str, channels: int) -> None:
    states, problem = explore(channels, 3, MODES[mode])
    assert not problem
    assert states >= {1: 30, 2: 200, 3: 700}[channels], "what is no longer tried?"


@pytest.mark.parametrize("mode", ["unaligned", "timed"])
def test_what_is_forced_to_be_aligned_overtakes_nothing(mode: str) -> None:
    assert explore(2, 3, MODES[mode], frozenset({2}))[1] == ""


def _never(state: Alignment, id: int) -> bool:
    return False


RULES: dict[str, tuple[str, Callable[..., object], Mode]] = {
    "refuses nothing": ("out_of_date", _never, ALIGNED),
    "takes what is not all there": ("all_there", lambda state, id: True, ALIGNED),
    "begins while it is busy": (
        "next_to_take",
        lambda state: min((id for id in state.pending if alignment.all_there(state, id)), default=None),
        ALIGNED,
    ),
    "takes the highest first": (
        "next_to_take",
        lambda state: max(state.pending, default=None) if state.busy_with is None else None,
        ALIGNED,
    ),
    "never takes": ("next_to_take", lambda state: None, ALIGNED),
    "overtakes what is aligned": (
        "may_overtake",
        lambda state, id: state.busy_with is not None and state.busy_with < id,
        ALIGNED,
    ),
    "overtakes a free job": ("may_overtake", lambda state, id: state.mode.overtaking, UNALIGNED),
    "does not wait for the time": (
        "may_overtake",
        lambda state, id: state.busy_with is not None and state.busy_with < id,
        TIMED,
    ),
    "never overtakes": ("may_overtake", _never, UNALIGNED),
}


@pytest.mark.parametrize("broken", RULES)
def test_a_rule_that_is_broken_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, instead, mode = RULES[broken]
    monkeypatch.setattr(alignment, rule, instead)
    assert explore(2, 3, mode)[1] != ""


ON = Alignment.on


@pytest.mark.parametrize("event", [Barrier, Cancel, Ended, TimeUp, Freed])
def test_an_event_that_is_not_heard_is_noticed(event: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alignment, "on", lambda self, each: (self, ()) if isinstance(each, event) else ON(self, each))
    assert explore(2, 3, TIMED)[1] != ""


@pytest.mark.parametrize("action", [Consume, Block, Overtake, Record, Abort, Refuse])
def test_an_action_that_is_left_out_is_noticed(action: type, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(self: Alignment, event: Event) -> tuple[Alignment, tuple[Action, ...]]:
        job, actions = ON(self, event)
        return job, tuple(each for each in actions if not isinstance(each, action))

    monkeypatch.setattr(Alignment, "on", on)
    assert explore(2, 3, UNALIGNED)[1] != ""


def test_a_cancellation_that_is_not_obeyed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alignment, "_cancelled", lambda self, id: (self, ()))
    assert "does not pass on" in explore(2, 2, ALIGNED)[1]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 7), st.integers(1, 12), st.sampled_from(sorted(MODES)), st.sets(st.integers(1, 12)), st.integers()
)
def test_longer_stories_by_chance(channels: int, checkpoints: int, mode: str, aligned: set[int], chance: int) -> None:
    """And each ends: once all barriers are there and the job is left alone, it is at the last checkpoint."""
    dice = random.Random(chance)
    seen = begin(channels, MODES[mode], frozenset(aligned))
    for _ in range(200):
        events = [event for event in possible(seen, checkpoints) if not isinstance(event, Cancel)]
        if not events:
            break
        seen = happen(seen, dice.choice(events))
        assert not seen.wrong
    while open_channels := [c for c, last in enumerate(seen.last) if last < checkpoints and c not in seen.ended]:
        seen = happen(seen, Barrier(seen.last[open_channels[0]] + 1, name(open_channels[0])))
        assert not seen.wrong
    while seen.job.busy_with is not None:
        seen = happen(seen, Freed())
        assert not seen.wrong
    assert not [id for id in seen.job.pending if there(seen, id)]
    assert seen.taken == checkpoints or checkpoints in seen.overtaken


def test_a_job_that_was_overtaken_catches_up_in_one_go() -> None:
    job = Alignment(frozenset({"a"}), UNALIGNED)
    job, actions = job.after(Barrier(1, "a"), Barrier(2, "a"), Barrier(3, "a"))
    assert actions == (Consume(1), Overtake(2), Record(2, "a"), Overtake(3), Record(3, "a"))
    job, actions = job.after(Freed(), Barrier(4, "a"))
    assert actions == (Consume(4),)


def test_the_last_snapshot_stands_at_the_first_barrier_and_each_later_one_closes_its_channel() -> None:
    job, _ = Alignment(frozenset("ab"), UNALIGNED).after(Barrier(1, "a"), Barrier(1, "b"))
    assert job.busy_with == 1
    job, actions = job.after(Barrier(2, "a"))
    assert actions == (Overtake(2), Record(2, "a"))
    assert job.on(Barrier(2, "b"))[1] == (Record(2, "b"),)


def test_a_channel_that_is_ahead_is_blocked_until_the_last_one_is_there() -> None:
    job, actions = Alignment(frozenset("ab")).after(Barrier(1, "a"), Barrier(2, "a"))
    assert actions == (Block(1, "a"), Block(2, "a"))
    job, actions = job.after(Barrier(1, "b"), Freed(), Barrier(2, "b"))
    assert actions == (Consume(1), Consume(2))


def test_a_cancelled_checkpoint_is_passed_on_once_and_its_late_barriers_are_refused() -> None:
    _, actions = Alignment(frozenset("ab")).after(Barrier(1, "a"), Cancel(1), Cancel(1), Barrier(1, "b"))
    assert actions == (Block(1, "a"), Abort(1), Refuse(1, "b"))
