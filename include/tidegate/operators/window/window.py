"""Windows of event time: groups rows of the same hour, or without a long break between them.

    new        this checkpoint's rows as partial results per window    late rows are counted, and dropped or emitted
    state      the partial results of windows that have not expired    keys: window_start and the by-columns
    emit       "close": each window once, in the checkpoint whose watermark completes it
               "update": each window whenever it changes

A window takes rows from its start (inclusive) to its end (exclusive, but inclusive for a session). It is complete once
the watermark with this checkpoint's rows has reached its end (passed it, for a session), and expires after
`allowed_lateness`. The watermark of the base decides whether a row is late. So as long as no row is later than the
watermark's delay, results do not depend on how the input was cut into checkpoints. Expired windows stay in the state's
files until every window of a file has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.config.keys import duration_text, seconds_in
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext, Watermarks
from tidegate.operators.functions import arguments, meanings, parse_functions
from tidegate.operators.inputs import key_problems, record_sketched_types, refuse_reserved_columns
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
from tidegate.records.moments import END_OF_TIME, from_micros, micros_of
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import duration_problem, micros_in, moment
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Window"]

CLOCK: Final = "_clock"
"""The column with processing time, and the key in the operator's memory for the last one."""
MAX_WINDOWS = 1000
"""The number of hopping windows that may contain a row. Each of them is a row of state."""


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
        size_s, size_micros = 0.0, None
        stable_keys: list[frozenset[str]] = []
        if not is_session:
            # A fixed window never moves, but a session's bounds may.
            stable_keys = [frozenset([*by, *bounds]) for bounds in ({START}, {END}, {START, END})]
            if is_valid:
                size_s, size_micros = seconds_in(self._sizes[0]), micros_in(self._sizes[0])
        untimely = {}
        for name in (START, END, *by, *self.functions):
            problem = self._untimely(name)
            if problem is not None:
                untimely[name] = problem
        return OperatorSpec(
            identity=[*self._shape.split(), *self.by],
            event_time=None if self._uses_processing_time else EventTime(inputs=[self._timed_input]),
            output=OutputSpec(
                columns=[START, END, *by, *self.functions],
                others=[LATE_OUTPUT] if self.late == "side" else [],
                possible_others={LATE_OUTPUT: 'late="side"'},
                results=arguments(self.functions),
                # When the watermark reaches the end of a fixed window, it is emitted for all keys at once.
                complete_per_checkpoint_by=frozenset() if updates or is_session else frozenset((START, END)),
                # Downstream, the event time of a row is the start of its window, or the end of its session.
                lag_s=allowed_s + size_s,
                untimely=untimely,
            ),
            changelog=Changelog(
                updates=Updates.ALWAYS if updates else Updates.NEVER,
                # No two windows of a key have the same start, or the same end.
                key=(frozenset((START, END)), *key_of(by)),
                stable_keys=stable_keys,
                mode={"emit": self.emit, "allowed_lateness": allowed_s},
            ),
            growth=BOUNDED,
            intervals=Intervals(problems=self._interval_problems(), windows=size_micros),
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
        """Return why operators downstream cannot use a column as event time, or None if they can."""
        if self._uses_processing_time and column in (START, END):
            return f'event_time={column!r} is processing time, not event time: use time="processing" there, too'
        if self._uses_processing_time:
            return (
                f"event_time={column!r} may be older than other rows of its checkpoint, because its window waited by "
                'processing time: rows would be late, and dropped; use time="processing" there, too'
            )
        if self.session is None or column == END:
            return None
        return (
            f"event_time={column!r} may be older than a session's end by any time, as long as the session lasts: long "
            f"ones would be late, and dropped; use event_time={END!r}"
        )

    def _interval_problems(self) -> list[str]:
        if self._uses_processing_time:
            return ['time="processing": an interval may be computed at any time, and recomputed later: use event time']
        if self.hopping is None or self._duration_problems() or len(set(map(micros_in, self._sizes))) == 1:
            return []
        return [
            f"hopping={self.hopping!r}: windows that overlap cross the borders of intervals, and each interval would "
            "emit a part of them: use tumbling windows that fill an interval, or sources that read all new rows"
        ]

    @property
    def _uses_processing_time(self) -> bool:
        """Whether a row's time is the time at which its checkpoint was planned."""
        return self.time == "processing"

    @property
    def _sizes(self) -> tuple[object, object]:
        """Size and slide of windows at fixed positions."""
        if isinstance(self.hopping, tuple | list) and len(self.hopping) == 2:
            return self.hopping[0], self.hopping[1]
        return self.tumbling, self.tumbling

    def describe(self) -> Json:
        kinds = {"tumbling": self.tumbling, "hopping": self.hopping, "session": self.session}
        described: Json = {name: value for name, value in kinds.items() if value is not None}
        described |= {
            "by": self.by,
            "functions": self.functions,
            "event_time": self.event_time,
            "emit": self.emit,
            "late": self.late,
            "allowed_lateness": self.allowed_lateness,
        }
        if self._uses_processing_time:
            described["time"] = self.time
        return described

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "the window": self._shape}
        if not self._uses_processing_time:
            meaning["event_time"] = [self.event_time]
        return meaning | meanings(self.functions, in_windows=True)

    @property
    def _shape(self) -> str:
        """The normalized shape, such as "tumbling 1 h", independent of its notation."""
        kind = "tumbling" if self.tumbling is not None else "hopping"
        if self.session is not None:
            kind = "session"
        if self._uses_processing_time:
            kind = f"processing {kind}"
        if self._duration_problems():
            return kind
        durations = [duration for duration in (*self._sizes, self.session) if duration is not None]
        sizes = [duration_text(seconds_in(duration)) for duration in durations]
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
                problems.append(f"by names {name!r}, which tidegate reserves: rename the column in an upstream stage")
        return problems + result_problems(self.by, self.functions)

    def _duration_problems(self) -> list[str]:
        sizes = []
        for duration in (self.tumbling, self.hopping, self.session):
            if duration is not None:
                sizes.append(duration)
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
        declared_size, declared_step = self.hopping
        problems = [
            duration_problem("hopping's size", declared_size),
            duration_problem("hopping's step", declared_step),
        ]
        if any(problems):
            return [problem for problem in problems if problem is not None]
        size, step = micros_in(declared_size), micros_in(declared_step)
        if step > size:
            return [f"hopping={self.hopping!r}: with a step longer than the size, rows between windows would be lost"]
        if size > step * MAX_WINDOWS:
            windows = -(-size // step)
            return [f"hopping={self.hopping!r}: each row would be in {windows} windows, the limit is {MAX_WINDOWS}"]
        return []

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        stored = states[""]
        if stored is None:
            return None
        rows = inputs[0]
        if self._uses_processing_time:
            rows, context = self._with_processing_time(rows, context)
        return self._windowing(rows, context).emitted_results(stored)

    def _with_processing_time(self, rows: DataFrame, context: OperatorContext) -> tuple[DataFrame, OperatorContext]:
        """Return the rows with the checkpoint's time, and the context with it as the watermark.

        A manual edit has the time of the checkpoint before it. Processing time never goes back.
        """
        from pyspark.sql import functions as F

        refuse_reserved_columns(rows, context, [CLOCK])
        before = context.memory.get(CLOCK)
        now = micros_of(context.clock)
        watermark_before = None
        if isinstance(before, int):
            now = before if context.timers_paused else max(before, now)
            watermark_before = from_micros(before)
        context.remember[CLOCK] = now
        if context.watermarks.event_time_ends:
            watermark = END_OF_TIME
        else:
            watermark = from_micros(now)
        time = F.expr(f"timestamp_micros({moment(now, quoted(rows.columns[0]))})").alias(CLOCK)
        return rows.select("*", time), replace(context, watermarks=Watermarks(watermark_before, watermark))

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
            rows, context = self._with_processing_time(rows, context)
        windowing = self._windowing(rows, context)
        record_sketched_types(parse_functions(self.functions), rows, context)
        if self.session is not None:
            return SessionWindows(windowing, micros_in(self.session)).run(rows)
        size, slide = self._sizes
        return FixedWindows(windowing, micros_in(size), micros_in(slide)).run(rows)
