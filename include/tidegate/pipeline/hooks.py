"""A pipeline's own code that is called by tidegate: told of suspensions, and taking part in checkpoints."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.config.keys import seconds_in
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.names import check_name
from tidegate.records.records import Json

__all__ = ["Hook", "OnSuspended", "Preparing", "Suspension", "Triggering", "make_hook", "once_each"]

STATE_LIMIT = 65_536
"""Bytes that a hook may keep in each checkpoint: its plan must stay readable."""


@dataclass(frozen=True)
class Suspension:
    """The pipeline makes no checkpoints: none is planned until somebody says `tidegate resume NAME`; or none can be."""

    pipeline: str
    by: str
    """Who said so: a person, the run that found something damaged, or the rejection of a checkpoint; empty if too many
    have failed."""
    why: str
    failed: tuple[int, ...] = ()
    """The checkpoints that failed in a row, oldest first."""
    suspended: bool = True
    """False: more runs in a row than `tolerable_failed_checkpoints` allows could not even plan one, for a source, a
    store or a hook fails. Nobody has to say `resume`: the next run tries again."""


OnSuspended = Callable[[Suspension], object]


@dataclass(frozen=True)
class Triggering:
    """What a hook is told of the checkpoint that is being planned."""

    pipeline: str
    id: int
    """Its number, if nobody else is faster: then the hook is called again, with another one."""
    base: int | None
    """The checkpoint that it goes on from."""
    run: str


@dataclass(frozen=True)
class Preparing:
    """What a hook is told in a job: its rows are computed and staged, and nothing of it counts yet."""

    pipeline: str
    id: int
    job: str
    attempt: str
    """Tells this try from others, which may be called as well; the ack of one of them counts."""


@dataclass(frozen=True)
class Hook:
    """Code of the pipeline's owner that takes part in each checkpoint."""

    name: str
    on_trigger: Callable[[Triggering], Json | None] | None
    on_prepare: Callable[[Preparing], object] | None
    on_restore: Callable[[Json], object] | None
    on_reset: Callable[[], object] | None
    timeout_s: float

    def trigger(self, triggering: Triggering) -> Json:
        """What it wants to be kept with the checkpoint."""
        if self.on_trigger is None:
            return {}
        given = self._called("on_trigger", self.on_trigger, triggering)
        try:
            kept = msgspec.json.encode(given if given is not None else {})
        except (TypeError, ValueError) as error:
            raise self._no_state(f"something that is no JSON: {error}") from error
        if not isinstance(given, dict | None):
            raise self._no_state(f"a {type(given).__name__}")
        if len(kept) > STATE_LIMIT:
            raise self._no_state(f"{len(kept):,} bytes")
        plain: Json = msgspec.json.decode(kept)
        return plain

    def prepare(self, preparing: Preparing) -> None:
        """Let it do what is to be done before the job's snapshot counts. If it cannot, the checkpoint is declined."""
        assert self.on_prepare is not None
        self._called("on_prepare", self.on_prepare, preparing)

    def restore(self, state: Json | None) -> None:
        """Let it go back to what it gave then; None: it was not there then."""
        if state is None:
            if self.on_reset is not None:
                self._called("on_reset", self.on_reset)
        elif self.on_restore is not None:
            self._called("on_restore", self.on_restore, state)

    def _called(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call it, within its time limit. Python cannot end a thread: one that hangs is left behind."""
        answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

        def run() -> None:
            try:
                answers.put((function(*given), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name=f"tidegate-hook-{self.name}", daemon=True).start()
        try:
            answer, error = answers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise self._failed(what, f"gave no answer within {self.timeout_s:g} s") from None
        if isinstance(error, TidegateError):
            raise error
        if error is not None:
            raise self._failed(what, f"raised {type(error).__name__}: {error}") from error
        return answer

    def _failed(self, what: str, why: str) -> TidegateError:
        if what == "on_prepare":
            return Invalid(
                f"{what} of hook {self.name!r} {why}",
                expected="that it returns; without it the checkpoint is declined",
                help="mend the hook, or take it out of the pipeline: the input is in the next checkpoint. "
                "To have the job tried again at once, it may raise tidegate.errors.Unavailable",
                reason="HOOK_DECLINED",
            )
        return Unavailable(
            f"{what} of hook {self.name!r} {why}",
            expected="an answer; nothing is planned without it",
            help="it is tried again with the next run; mend the hook, or take it out of the pipeline",
            reason="HOOK_FAILED",
        )

    def _no_state(self, what: str) -> Invalid:
        return Invalid(
            f"on_trigger of hook {self.name!r} returned {what}",
            expected=f"a dict of JSON values of at most {STATE_LIMIT:,} bytes, or None",
            help="keep what is large elsewhere, and return where",
            reason="HOOK_STATE",
        )


def make_hook(
    name: str,
    on_trigger: Callable[[Triggering], Json | None] | None,
    on_prepare: Callable[[Preparing], object] | None,
    on_restore: Callable[[Json], object] | None,
    on_reset: Callable[[], object] | None,
    timeout: str,
) -> Hook:
    """A hook as it was declared, or Invalid."""
    check_name("hook", name)
    given = {"on_trigger": on_trigger, "on_prepare": on_prepare, "on_restore": on_restore, "on_reset": on_reset}
    wrong = [what for what, each in given.items() if each is not None and not callable(each)]
    if wrong or not any(given.values()):
        raise Invalid(
            f"hook {name!r} has {' and '.join(wrong) + ' that cannot be called' if wrong else 'nothing to be called'}",
            expected="functions as on_trigger, on_prepare, on_restore, on_reset",
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
            help="say how long it may take at most, or leave timeout out",
            reason="BAD_PIPELINE",
        )
    return Hook(name, on_trigger, on_prepare, on_restore, on_reset, seconds)


def once_each(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """The hooks, if no two have one name."""
    twice = sorted(name for name, count in Counter(hook.name for hook in hooks).items() if count > 1)
    if twice:
        raise Invalid(
            f"two hooks are named {twice[0]!r}",
            expected="a name of its own for each: its state is found by it",
            help="rename the one that is new: the other one's state stays with it",
            reason="BAD_PIPELINE",
        )
    return tuple(hooks)
