"""User code that tidegate calls when a pipeline is suspended, in each checkpoint, and when one is settled."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

import msgspec

from tidegate.config.keys import seconds_in
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.names import check_name
from tidegate.records.records import Json

__all__ = [
    "Callbacks",
    "Hook",
    "OnSuspended",
    "Preparing",
    "RestoredAfterSwap",
    "Settled",
    "Suspension",
    "Triggering",
    "make_hook",
    "once_each",
]

RestoredAfterSwap = Literal["last", "origin"]
"""Which state a hook gets after a backfill is swapped in: that of the checkpoint that the swap follows, or that of the
checkpoint from which the backfill began."""

STATE_LIMIT = 65_536
"""Maximum size of a hook's state in bytes. It is part of each plan, which must stay readable."""


@dataclass(frozen=True)
class Suspension:
    """The argument of `on_suspended`: the pipeline makes no checkpoints.

    It is suspended until `tidegate resume NAME`, or its runs fail to plan checkpoints.
    """

    pipeline: str
    by: str
    """The cause: a user, the run that found damage, or the rejection of a checkpoint. Empty if too many checkpoints
    have failed."""
    why: str
    failed: tuple[int, ...] = ()
    """The checkpoints that failed in a row, oldest first."""
    suspended: bool = True
    """False if the pipeline is not suspended, but more runs in a row than `tolerable_failed_checkpoints` allows could
    not plan a checkpoint, because a source, a store or a hook fails. No `resume` is needed then."""


OnSuspended = Callable[[Suspension], object]


@dataclass(frozen=True)
class Triggering:
    """The argument of `on_trigger`: the checkpoint that is being planned."""

    pipeline: str
    id: int
    """Its number. If another process takes it first, the hook is called again with another number."""
    base: int | None
    """The checkpoint that it continues from."""
    run: str


@dataclass(frozen=True)
class Preparing:
    """The argument of `on_prepare`: the job's rows are computed and staged, and none of them counts yet."""

    pipeline: str
    id: int
    job: str
    attempt: str
    """Identifies this attempt. Other attempts may call the hook as well; the ack of one of them counts."""


@dataclass(frozen=True)
class Settled:
    """The argument of `on_completed` and `on_aborted`: a checkpoint whose outcome is certain."""

    pipeline: str
    id: int
    run: str
    completed: bool
    """True if it is published to all tables, False if it was aborted."""
    reason: str = ""
    """The reason of an abort."""
    detail: str = ""
    operator: str = ""
    """The uid of the operator that the hook is for, if any."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of the Delta tables at this checkpoint, by sink, or by state if the hook is for an operator. Empty
    if the checkpoint's records are deleted already."""


class Callbacks(TypedDict, total=False):
    """The functions of a hook."""

    on_trigger: Callable[[Triggering], Json | None] | None
    on_prepare: Callable[[Preparing], object] | None
    on_restore: Callable[[Json], object] | None
    on_reset: Callable[[], object] | None
    on_completed: Callable[[Settled], object] | None
    on_aborted: Callable[[Settled], object] | None


@dataclass(frozen=True)
class Hook:
    """User code that takes part in each checkpoint."""

    name: str
    timeout_s: float
    on_trigger: Callable[[Triggering], Json | None] | None = None
    on_prepare: Callable[[Preparing], object] | None = None
    on_restore: Callable[[Json], object] | None = None
    on_reset: Callable[[], object] | None = None
    on_completed: Callable[[Settled], object] | None = None
    on_aborted: Callable[[Settled], object] | None = None
    operator: str = ""
    """The uid of the operator that it is for, or empty if it is for the pipeline."""
    after_swap: RestoredAfterSwap = "last"

    @property
    def is_notified(self) -> bool:
        """Whether it is called when checkpoints are settled."""
        return self.on_completed is not None or self.on_aborted is not None

    def settle(self, settled: Settled) -> None:
        """Call `on_completed` or `on_aborted`."""
        name = "on_completed" if settled.completed else "on_aborted"
        function = self.on_completed if settled.completed else self.on_aborted
        if function is not None:
            self._call_in_time(name, function, settled)

    def trigger(self, triggering: Triggering) -> Json:
        """Call `on_trigger` and return the state to store with the checkpoint."""
        if self.on_trigger is None:
            return {}
        state = self._call_in_time("on_trigger", self.on_trigger, triggering)
        try:
            encoded = msgspec.json.encode(state if state is not None else {})
        except (TypeError, ValueError) as error:
            raise self._bad_state(f"a value that JSON cannot hold: {error}") from error
        if not isinstance(state, dict | None):
            raise self._bad_state(f"a {type(state).__name__}")
        if len(encoded) > STATE_LIMIT:
            raise self._bad_state(f"{len(encoded):,} bytes")
        plain: Json = msgspec.json.decode(encoded)
        return plain

    def prepare(self, preparing: Preparing) -> None:
        """Call `on_prepare`, before the job's ack counts. If it fails, the checkpoint is declined."""
        assert self.on_prepare is not None
        self._call_in_time("on_prepare", self.on_prepare, preparing)

    def restore(self, state: Json | None) -> None:
        """Call `on_restore` with the stored state, or `on_reset` if the checkpoint has none of this hook (None)."""
        if state is None:
            if self.on_reset is not None:
                self._call_in_time("on_reset", self.on_reset)
        elif self.on_restore is not None:
            self._call_in_time("on_restore", self.on_restore, state)

    def _call_in_time(self, callback: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function within the time limit. Python cannot end a thread, so one that hangs keeps running."""
        answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

        def run() -> None:
            try:
                answers.put((function(*arguments), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name=f"tidegate-hook-{self.name}", daemon=True).start()
        try:
            answer, error = answers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise self._failure(callback, f"did not return within {self.timeout_s:g} s") from None
        if isinstance(error, TidegateError):
            raise error
        if error is not None:
            raise self._failure(callback, f"raised {type(error).__name__}: {error}") from error
        return answer

    def _failure(self, callback: str, why: str) -> TidegateError:
        if callback == "on_prepare":
            return Invalid(
                f"{callback} of hook {self.name!r} {why}",
                expected="a return within the time limit; otherwise the checkpoint is declined",
                help="fix the hook, or remove it from the pipeline: the input is in the next checkpoint. "
                "To have the job retried at once, raise tidegate.errors.Unavailable in the hook",
                reason="HOOK_DECLINED",
            )
        if callback in ("on_completed", "on_aborted"):
            return Unavailable(
                f"{callback} of hook {self.name!r} {why}",
                expected="a return within the time limit; the checkpoint itself is settled, whatever the hook does",
                help="the end of the next checkpoint calls it again, before later checkpoints; fix the hook, or remove "
                "it from the pipeline",
                reason="HOOK_NOT_TOLD",
            )
        return Unavailable(
            f"{callback} of hook {self.name!r} {why}",
            expected="a result; nothing is planned without it",
            help="the next run tries again; fix the hook, or remove it from the pipeline",
            reason="HOOK_FAILED",
        )

    def _bad_state(self, value: str) -> Invalid:
        return Invalid(
            f"on_trigger of hook {self.name!r} returned {value}",
            expected=f"a dict of JSON values of at most {STATE_LIMIT:,} bytes, or None",
            help="store large data elsewhere, and return its location",
            reason="HOOK_STATE",
        )


def make_hook(
    name: str, timeout: str, callbacks: Callbacks, operator: str = "", after_swap: RestoredAfterSwap = "last"
) -> Hook:
    """Return the hook, or raise Invalid if its declaration is wrong."""
    check_name("hook", name)
    wrong = []
    for key, function in callbacks.items():
        if function is not None and not callable(function):
            wrong.append(key)
    if wrong or not any(callbacks.values()):
        if wrong:
            problem = f"{' and '.join(wrong)} that cannot be called"
        else:
            problem = "nothing to be called"
        raise Invalid(
            f"hook {name!r} has {problem}",
            expected=f"functions as {', '.join(Callbacks.__annotations__)}",
            help="pass the functions themselves, without calling them",
            reason="BAD_PIPELINE",
        )
    try:
        seconds = seconds_in(timeout)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise Invalid(
            f"hook {name!r} has timeout {timeout!r}",
            expected='a duration above 0, such as "30 s" or "2 min"',
            help="set the longest time that a call may take, or leave out timeout",
            reason="BAD_PIPELINE",
        )
    if after_swap not in get_args(RestoredAfterSwap):
        raise Invalid(
            f"hook {name!r} has after_swap {after_swap!r}",
            expected=" or ".join(map(repr, get_args(RestoredAfterSwap))),
            help="leave it out to get the state of the checkpoint that the swap follows, where sources continue",
            reason="BAD_PIPELINE",
        )
    return Hook(name, seconds, **callbacks, operator=operator, after_swap=after_swap)


def once_each(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """Return the hooks; raise Invalid if two have the same name."""
    twice = sorted(name for name, count in Counter(hook.name for hook in hooks).items() if count > 1)
    if twice:
        raise Invalid(
            f"two hooks are named {twice[0]!r}",
            expected="different names: a hook's state is found by its name",
            help="rename the new one; the other one keeps its state",
            reason="BAD_PIPELINE",
        )
    return tuple(hooks)
