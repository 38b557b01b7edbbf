"""At least once, a job's side of its channels: every order of events for up to 3 channels and 3 checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from unittest import mock

import pytest

from tidegate.checkpoint.barriers import (
    Abort,
    Action,
    Barrier,
    Cancel,
    Ended,
    Event,
    Freed,
    Refuse,
    Take,
    TimeUp,
    Tracker,
    tracking,
)

IDS = (1, 2, 3)


@dataclass(frozen=True)
class Seen:
    """The job, and all that has been said and done so far."""

    job: Tracker
    last: tuple[int, ...]
    """By channel, its last barrier; 9: it has ended."""
    taken: tuple[int, ...] = ()
    cancelled: frozenset[int] = frozenset()


def channels(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


def said(seen: Seen) -> Iterator[tuple[Event, Seen]]:
    """What may be said next."""
    for channel, last in enumerate(seen.last):
        if last < len(IDS):
            yield Barrier(last + 1, str(channel)), replace(seen, last=put(seen.last, channel, last + 1))
        if last < 9 and not seen.cancelled:  # one or the other: both at once shows no more
            yield Ended(str(channel)), replace(seen, last=put(seen.last, channel, 9))
    if seen.job.busy_with is not None:
        yield Freed(), seen
    for id in IDS:
        if not seen.cancelled and id not in seen.taken and 9 not in seen.last:
            yield Cancel(id), replace(seen, cancelled=frozenset([id]))


def put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def wrong(event: Event, before: Seen, after: Seen, actions: tuple[Action, ...]) -> str:
    """What of the answer must not be."""
    busy = before.job.busy_with is not None and event not in (Freed(), Cancel(before.job.busy_with))
    for action in actions:
        if not isinstance(action, Take | Refuse | Abort):
            return f"{action}: nothing is blocked, recorded or overtaken"
        if not isinstance(action, Take):
            continue
        if busy:
            return f"it begins {action.id} while it is at work on {before.job.busy_with}"
        if action.id in after.cancelled:
            return f"it begins {action.id}, which is cancelled"
        if any(last < action.id for last in after.last):
            return f"it begins {action.id} before all of it is there"
        if before.taken and action.id <= before.taken[-1]:
            return f"it begins {action.id} behind {before.taken[-1]}"
    return unsaid(event, before, after, actions)


def unsaid(event: Event, before: Seen, after: Seen, actions: tuple[Action, ...]) -> str:
    """What of the answer is missing, told from what was said before."""
    ended = isinstance(event, Freed) or event == Cancel(before.job.busy_with or 0)
    taken = [action.id for action in actions if isinstance(action, Take)]
    busy = taken[-1] if taken else None if ended else before.job.busy_with
    if after.job.busy_with != busy:
        return f"it says that it is at work on {after.job.busy_with}, and is at {busy}"
    done = max(before.taken, default=0)
    if isinstance(event, Cancel) and event.id > done and Abort(event.id) not in actions:
        return "it is not passed on"
    late = isinstance(event, Barrier) and (event.id <= done or event.id in before.cancelled)
    if isinstance(event, Barrier) and late and Refuse(event.id, event.channel) not in actions:
        return "it is not refused"
    return ""


def left(seen: Seen) -> str:
    """What is never begun, though all is said and the job is free."""
    if seen.job.busy_with is not None:
        return ""
    there = min((last for last in seen.last if last != 9), default=0)
    due = max((id for id in range(1, there + 1) if id not in seen.cancelled), default=0)
    if due > max(seen.taken, default=0):
        return f"{due} is not begun, though it is in all channels that have not ended"
    if any(last < len(IDS) for last in seen.last):
        return ""
    upto = len(IDS) if 9 not in seen.last else 0  # with channels that ended before, it may have nothing to count
    lost = [id for id in range(1, upto + 1) if id not in seen.taken and id not in seen.cancelled]
    return f"{lost} is never begun" if lost else ""


def explored(count: int) -> tuple[int, str]:
    """(states, the first thing that is wrong)."""
    first = Seen(Tracker(channels(count)), (0,) * count)
    queue, known = [first], {repr(first)}
    while queue:
        seen = queue.pop()
        for event, next in said(seen):
            job, actions = seen.job.on(event)
            taken = tuple(action.id for action in actions if isinstance(action, Take))
            after = replace(next, job=job, taken=(*seen.taken, *taken))
            problem = wrong(event, seen, after, actions) or left(after)
            if problem:
                return len(known), f"{event}: {problem}"
            if repr(after) not in known:
                known.add(repr(after))
                queue.append(after)
    return len(known), ""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_checkpoint_is_begun_once_in_order_when_all_of_it_is_there(count: int) -> None:
    states, problem = explored(count)
    assert not problem
    assert states > 9**count


def _at_once(state: Tracker) -> tuple[Tracker, tuple[Action, ...]]:
    """A checkpoint is due with its first barrier."""
    for id in sorted(state.pending):
        state = tracking.subsumed(state, id)
    return tracking._next(state)


def _whatever_it_does(state: Tracker) -> tuple[Tracker, tuple[Action, ...]]:
    """A job that is busy begins the next one, too."""
    if not state.ready:
        return state, ()
    first, *rest = state.ready
    return replace(state, busy_with=first, ready=tuple(rest)), (Take(first),)


def _all_but_the_last(state: Tracker, id: int) -> Tracker:
    """What was due before goes, too."""
    return replace(right_subsumed(state, id), ready=(id,))


right_subsumed: Callable[[Tracker, int], Tracker] = tracking.subsumed
MUTATIONS = {"_due": _at_once, "_next": _whatever_it_does, "subsumed": _all_but_the_last}


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    with mock.patch.object(tracking, rule, MUTATIONS[rule]):
        assert explored(2)[1]


ON = Tracker.on


@pytest.mark.parametrize("kind", [Barrier, Cancel, Ended, Freed])
def test_an_event_that_is_not_heard_is_noticed(kind: type) -> None:
    with mock.patch.object(Tracker, "on", lambda self, each: (self, ()) if isinstance(each, kind) else ON(self, each)):
        assert explored(2)[1]


@pytest.mark.parametrize("kind", [Take, Abort, Refuse])
def test_an_action_that_is_left_out_is_noticed(kind: type) -> None:
    def on(self: Tracker, event: Event) -> tuple[Tracker, tuple[Action, ...]]:
        job, actions = ON(self, event)
        return job, tuple(each for each in actions if not isinstance(each, kind))

    with mock.patch.object(Tracker, "on", on):
        assert explored(2)[1]


def test_with_one_channel_nothing_is_counted() -> None:
    job, actions = Tracker(channels(1)).on(Barrier(7, "0"))
    assert actions == (Take(7),)
    assert (job.pending, job.busy_with) == ({}, 7)


def test_at_most_fifty_are_counted_the_oldest_are_given_up() -> None:
    job = Tracker(channels(2))
    for id in range(1, 61):
        job, actions = job.on(Barrier(id, "0"))
        assert actions == ()
    assert sorted(job.pending) == list(range(11, 61))
    assert job.on(Barrier(10, "1"))[1] == (Refuse(10, "1"),)
    assert job.on(Barrier(11, "1"))[1] == (Take(11),)


def test_what_is_due_ends_the_count_of_all_before_it() -> None:
    """A channel may leave out what was cancelled upstream."""
    job, _ = Tracker(channels(2)).after(Barrier(1, "0"), Barrier(2, "0"))
    job, actions = job.on(Barrier(2, "1"))
    assert (actions, job.pending) == ((Take(2),), {})
    assert job.on(Barrier(1, "1"))[1] == (Refuse(1, "1"),)


def _all_that_came_before_too(state: Tracker, id: int) -> Tracker:
    """What is due ends no other count."""
    pending = {other: there for other, there in state.pending.items() if other != id}
    return replace(right_subsumed(state, id), pending=pending)


BROKEN = {
    "counting": ("_due", _at_once, test_what_is_due_ends_the_count_of_all_before_it),
    "bound": ("bounded", lambda state: state, test_at_most_fifty_are_counted_the_oldest_are_given_up),
    "subsumption": ("subsumed", _all_that_came_before_too, test_what_is_due_ends_the_count_of_all_before_it),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_the_stories_above_notice_the_rule_that_they_tell_of(rule: str) -> None:
    name, broken, story = BROKEN[rule]
    with mock.patch.object(tracking, name, broken), pytest.raises(AssertionError):
        story()


def test_a_cancelled_one_is_passed_on_once_and_counted_no_more() -> None:
    job, _ = Tracker(channels(2)).on(Barrier(1, "0"))
    job, actions = job.on(Cancel(1))
    assert (actions, job.pending) == ((Abort(1),), {})
    assert job.on(Cancel(1))[1] == ()
    assert job.on(Barrier(1, "1"))[1] == (Refuse(1, "1"),)
    busy, _ = Tracker(channels(1)).after(Barrier(1, "0"), Barrier(2, "0"))
    assert busy.on(Cancel(1))[1] == (Abort(1), Take(2)), "the job is free for what waits"


def test_time_has_no_say() -> None:
    job = Tracker(channels(2), pending={1: frozenset("0")})
    assert job.on(TimeUp(1)) == (job, ())
