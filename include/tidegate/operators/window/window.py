"""Windows of event time: groups rows of the same hour, or without a long break between them.

    fresh      this checkpoint's rows as partial results per window    late ones are left out and counted, or given out
    state      the partial results of windows that are not over        keys: window_start and the by-columns
    emit       "close": each window once, in the checkpoint whose watermark completes it
               "update": each window whenever it changes

A window takes rows from its start up to, but not including, its end; a session also one at its end. It is complete once
the watermark (with this checkpoint's rows) has come to its end (a session: is behind it), and over when
`allowed_lateness` has passed too. Whether a row is late is judged by the watermark of the base: so as long as no row is
later than the watermark's delay, the results do not depend on how the input was cut into checkpoints. Expired
windows stay in the state's files until every window of a file has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.config.keys import duration_text, seconds_in
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext, Watermarks
from tidegate.operators.functions import arguments, meanings
from tidegate.operators.inputs import key_problems, refuse_reserved_columns
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    BOUNDED,
    Changelog,
    EventTime,
    Intervals,
    OperatorSpec,
    OutputSpec,
    TimedInput,
    Updates,
)
from tidegate.operators.window.closing import END, START, Windowing, result_problems
from tidegate.operators.window.fixed import FixedWindows
from tidegate.operators.window.sessions import SessionWindows
from tidegate.records.moments import END_OF_TIME, at_micros, micros_of
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import duration_problem, micros_in, moment
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Window"]

CLOCK: Final = "_clock"
"""The column, and what the operator remembers, of the time by the clock."""
MAX_WINDOWS = 1000
"""The most hopping windows that a row may lie in: each of them is a row of state."""


class Window(Operator):
    """Aggregates per window and key. Exactly one of `tumbling`, `hopping` and `session` is declared."""

    kind: ClassVar[str] = "window"

    def __init__(
        self,
        by: Sequence[str],
        functions: Mapping[str, str],
        *,
        tumbling: object = None,
        hopping: object = None,
        session: object = None,
        event_time: str | None = None,
        emit: str = "close",
        late: str = "drop",
        allowed_lateness: object = 0,
        time: str = "event",
    ) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.tumbling, self.hopping, self.session = tumbling, hopping, session
        self.event_time = event_time
        self.emit = emit
        self.late = late
        self.allowed_lateness = allowed_lateness
        self.time = time

    def spec(self) -> OperatorSpec:
        by, is_valid, is_session = list(map(str, self.by)), not self._duration_problems(), self.session is not None
        allowed_s = seconds_in(self.allowed_lateness) if is_valid else 0.0
        updates = self.emit == "update" or (is_valid and micros_in(self.allowed_lateness) > 0)
        moments = [{START}, {END}, {START, END}]
        return OperatorSpec(
            identity=[*self._shape.split(), *self.by],
            event_time=None if self._uses_processing_time else EventTime(inputs=[self._timed_input]),
            output=OutputSpec(
                columns=[START, END, *by, *self.functions],
                others=[LATE_OUTPUT] if self.late == "side" else [],
                possible_others={LATE_OUTPUT: 'late="side"'},
                results=arguments(self.functions),
                # A fixed window's rows come when the watermark has come to its end: those of all keys at once.
                complete_per_checkpoint_by=frozenset() if updates or is_session else frozenset((START, END)),
                # Rows carry their window's start downstream, those of a session its end.
                lag_s=allowed_s + (seconds_in(self._sizes[0]) if is_valid and not is_session else 0.0),
                untimely={name: why for name in (START, END, *by, *self.functions) if (why := self._untimely(name))},
            ),
            changelog=Changelog(
                updates=Updates.ALWAYS if updates else Updates.NEVER,
                # Of a key's windows no two begin, or end, at the same time.
                key=(frozenset((START, END)), *key_of(by)),
                # A fixed window stays where it is; the start of a session moves.
                stable_keys=[] if is_session else [frozenset([*by, *moment]) for moment in moments],
                mode={"emit": self.emit, "allowed_lateness": allowed_s},
            ),
            growth=BOUNDED,
            intervals=Intervals(
                problems=self._interval_problems(),
                windows=micros_in(self._sizes[0]) if is_valid and not is_session else None,
            ),
            cuts=["in which window a row is: that of its checkpoint's clock"] if self._uses_processing_time else [],
        )

    @property
    def _timed_input(self) -> TimedInput:
        if self._duration_problems():
            return TimedInput(self.event_time, None)
        allowed = micros_in(self.allowed_lateness)
        if self.session is not None:
            return TimedInput(self.event_time, Lateness(micros_in(self.session) + 1, 0, allowed))
        size, slide = map(micros_in, self._sizes)
        return TimedInput(self.event_time, Lateness(size, slide, allowed))

    def _untimely(self, column: str) -> str | None:
        """Return why nobody can go by this column of its rows as event time. None: somebody can."""
        if self._uses_processing_time and column in (START, END):
            return f'event_time={column!r} is a time of the clock, and no event time: say time="processing" there, too'
        if self._uses_processing_time:
            return (
                f"event_time={column!r} is older, by event time, than what comes with it, for its row has waited by "
                'the clock: it would come too late, and be dropped; say time="processing" there, too'
            )
        if self.session is None or column == END:
            return None
        return (
            f"event_time={column!r} is older than a session's end by as long as the session lasts, however long that "
            f"is: long ones would come too late, and be dropped; say event_time={END!r}"
        )

    def _interval_problems(self) -> list[str]:
        if self._uses_processing_time:
            return ['time="processing": an interval is made at any time, and again at another: go by event time']
        if self.hopping is None or self._duration_problems() or len(set(map(micros_in, self._sizes))) == 1:
            return []
        return [
            f"hopping={self.hopping!r}: windows that overlap reach across the borders of intervals, and each interval "
            "would give a part of them: use tumbling windows of which an interval has a whole number, or sources that "
            "read all new rows"
        ]

    @property
    def _uses_processing_time(self) -> bool:
        """Whether a row's time is that of its checkpoint: when that was planned."""
        return self.time == "processing"

    @property
    def _sizes(self) -> tuple[object, object]:
        """Size and slide of windows at fixed positions."""
        if isinstance(self.hopping, tuple | list) and len(self.hopping) == 2:
            return self.hopping[0], self.hopping[1]
        return self.tumbling, self.tumbling

    def describe(self) -> Json:
        kinds = {"tumbling": self.tumbling, "hopping": self.hopping, "session": self.session}
        return {
            **{name: value for name, value in kinds.items() if value is not None},
            "by": self.by,
            "functions": self.functions,
            "event_time": self.event_time,
            "emit": self.emit,
            "late": self.late,
            "allowed_lateness": self.allowed_lateness,
        } | ({"time": self.time} if self._uses_processing_time else {})

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "the window": self._shape}
        meaning |= {} if self._uses_processing_time else {"event_time": [self.event_time]}
        return meaning | meanings(self.functions, in_windows=True)

    @property
    def _shape(self) -> str:
        """The normalized shape, such as "tumbling 1 h", independent of how it was written."""
        kind = "session" if self.session is not None else "tumbling" if self.tumbling is not None else "hopping"
        kind = f"processing {kind}" if self._uses_processing_time else kind
        if self._duration_problems():
            return kind
        sizes = [
            duration_text(seconds_in(duration)) for duration in (*self._sizes, self.session) if duration is not None
        ]
        return f"{kind} {' every '.join(dict.fromkeys(sizes))}"

    def problems(self) -> list[str]:
        problems = self._duration_problems()
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as orders="count(*)"')
        if self.emit not in ("close", "update"):
            problems.append(f'emit={self.emit!r}: expected "close" (each window once) or "update" (on every change)')
        if self.time not in ("event", "processing"):
            problems.append(f'time={self.time!r}: expected "event" or "processing", when the checkpoint is planned')
        elif self._uses_processing_time and (self.event_time, self.late, self.allowed_lateness) != (None, "drop", 0):
            problems.append('time="processing": nothing is late; leave out event_time, late and allowed_lateness')
        if self.late not in ("drop", "side"):
            problems.append(f'late={self.late!r}: expected "drop" (and count) or "side" (the stream window["late"])')
        problems += key_problems(self.by) if self.by else []
        for name in map(str, self.by):
            if name in (START, END) or name.startswith("_"):
                problems.append(f"by names {name!r}, which is tidegate's own: rename the column in a stage before")
        return problems + result_problems(self.by, self.functions)

    def _duration_problems(self) -> list[str]:
        sizes = [duration for duration in (self.tumbling, self.hopping, self.session) if duration is not None]
        if len(sizes) != 1:
            kinds = 'tumbling="1 hour", hopping=("1 hour", "10 min") or session="30 min"'
            return [f"it has {len(sizes)} kinds of window: expected one of {kinds}"]
        checked = [duration_problem("allowed_lateness", self.allowed_lateness, minimum=0)]
        if self.tumbling is not None:
            checked.append(duration_problem("tumbling", self.tumbling))
        if self.session is not None:
            checked.append(duration_problem("session", self.session))
        if self.hopping is not None:
            checked += self._hopping_problems()
        return [problem for problem in checked if problem is not None]

    def _hopping_problems(self) -> list[str | None]:
        if not isinstance(self.hopping, tuple | list) or len(self.hopping) != 2:
            return [f'hopping={self.hopping!r}: expected a size and a step, such as ("1 hour", "10 min")']
        problems = [
            duration_problem(f"hopping's {part}", duration)
            for part, duration in zip(("size", "step"), self.hopping, strict=True)
        ]
        if any(problems):
            return [problem for problem in problems if problem is not None]
        size, step = (micros_in(duration) for duration in self.hopping)
        if step > size:
            return [f"hopping={self.hopping!r}: with a step longer than the size, rows between windows would be lost"]
        if size > step * MAX_WINDOWS:
            return [f"hopping={self.hopping!r}: each row would lie in {-(-size // step)} windows, {MAX_WINDOWS} may be"]
        return []

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        if states[""] is None:
            return None
        rows, context = self._clocked(inputs[0], context) if self._uses_processing_time else (inputs[0], context)
        return self._windowing(rows, context).emitted_results(states[""])

    def _clocked(self, rows: DataFrame, context: OperatorContext) -> tuple[DataFrame, OperatorContext]:
        """Return the rows with the checkpoint's time, and the context with it as the watermark.

        A checkpoint that is made by hand is of the time of the one before it. The clock never goes back.
        """
        from pyspark.sql import functions as F

        refuse_reserved_columns(rows, context, [CLOCK])
        told = context.memory.get(CLOCK)
        before = told if isinstance(told, int) else None
        now = micros_of(context.clock)
        if before is not None:
            now = before if context.timers_paused else max(before, now)
        context.remember[CLOCK] = now
        ends = context.watermarks.event_time_ends
        marks = Watermarks(None if before is None else at_micros(before), END_OF_TIME if ends else at_micros(now))
        time = F.expr(f"timestamp_micros({moment(now, quoted(rows.columns[0]))})").alias(CLOCK)
        return rows.select("*", time), replace(context, watermarks=marks)

    def _windowing(self, rows: DataFrame, context: OperatorContext) -> Windowing:
        windowing = Windowing(
            context=context,
            rows=rows,
            time=CLOCK if self._uses_processing_time else need_time(self.event_time, 0, context),
            key_columns=self.by,
            functions=self.functions,
            on_update=self.emit == "update",
            side=self.late == "side",
            allowed=micros_in(self.allowed_lateness),
            includes_end=self.session is not None,
        )
        windowing.refuse_unfit()
        return windowing

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        if self._uses_processing_time:
            rows, context = self._clocked(rows, context)
        windowing = self._windowing(rows, context)
        if self.session is not None:
            return SessionWindows(windowing, micros_in(self.session)).run(rows)
        size, slide = self._sizes
        return FixedWindows(windowing, micros_in(size), micros_in(slide)).run(rows)
