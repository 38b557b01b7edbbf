"""Any other computation per key: a Python function over the key's new rows, what it remembers, and its timers.

    batch ──keys──┐
    timers ─due───┴▶ wanted keys ──▶ their state and timers ─┐
    batch ──────────────────────────────────────────────────┴▶ the function, once per key ──▶ staged, then read for
                                                                                     rows · changed state · timers

What the function gives is staged once and read back for all three, so that they belong together even if the function
gives something else each time. Runs in Spark's Python workers through Arrow; only a lookup table comes to the driver.

Rows come as soon as they are there, and then the timers that the watermark has passed. `in_order`: rows wait until the
watermark has passed them, too, and everything comes in order of event time: so nothing depends on how input was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from tidegate.connectors.ddl import Column as Field
from tidegate.connectors.ddl import DdlError, parse_ddl
from tidegate.connectors.files.reading import empty_frame
from tidegate.delta import from_spark
from tidegate.delta.arrow_types import arrow_schema
from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.event_time_buffer import WAITING, rows_passed_by_watermark
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import (
    key_problems,
    names_in,
    need_columns,
    need_keys,
    recalled,
    refuse_reserved_columns,
    sql_type,
)
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time, side_times
from tidegate.operators.process.list_state import (
    ENDS,
    GROUP_OF_KEY,
    ListState,
    entry_changes,
    entry_files,
    list_parts,
    list_problems,
)
from tidegate.operators.process.map_state import (
    ENTRY,
    MapState,
    entry_type,
    map_part,
    map_problems,
    named_entries,
)
from tidegate.operators.process.one_zero import with_one_zero
from tidegate.operators.process.stored_list import PLACE, EntryFiles
from tidegate.operators.process.worker import AT, ROW, SIDE, STREAM, ListFields, MapFields, ProcessKernel
from tidegate.operators.spec import (
    ANY_INTERVAL,
    EventTime,
    Growth,
    Inputs,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    TimedInput,
    joined,
)
from tidegate.records.moments import at_micros
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import time_micros
from tidegate.spark.row_id import row_id
from tidegate.spark.workers.garbage import spare_modules
from tidegate.state.keyed import key_group

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, GroupedData

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import Ttl

__all__ = ["Process"]


TIMERS = "timers"
TIMERS_TYPE = "array<struct<kind:string,name:string,at:timestamp>>"
TAKEN = (TIMERS, "due_event", "due_clock", "_timers")
"""Columns of the timers' state."""
METHODS = ("clear", "as_dict")
MOMENT = "_moment"
"""The column with a row's time in a frame with the rows of two streams."""
PREFIXES = ("_first_", "_second_")
"""What such a frame puts before the names of each stream's columns: they are kept as columns, so that some may come."""
LATE_OTHER = "late-other"
"""The output with late rows of the second stream."""
LATE_OUTPUTS: Final = (LATE_OUTPUT, LATE_OTHER)
NONE: Final[Mapping[str, str]] = MappingProxyType({})
NO_MAPS: Final[Mapping[str, MapState]] = MappingProxyType({})
NO_LISTS: Final[Mapping[str, ListState]] = MappingProxyType({})
NO_FIELDS: Final[Mapping[str, Expiry]] = MappingProxyType({})


def _expiry_of(declared: MapState | ListState) -> Expiry:
    """Return when entries expire. What was declared may be neither: `problems` says so."""
    return declared.expiry if isinstance(declared, MapState | ListState) else NEVER


class Process(Operator):
    """`function(key, rows, state, timers)` for each key that has new rows or a timer that is due.

    With two streams it is `function(key, rows, others, state, timers)`, and a lookup table comes last.
    """

    kind: ClassVar[str] = "process"

    def __init__(
        self,
        by: Sequence[str],
        function: Callable[..., Any],
        output: str,
        state: str,
        order_by: Sequence[str] = (),
        *,
        in_order: bool = False,
        event_time: str | tuple[str | None, str | None] | None = None,
        expiry: Expiry = NEVER,
        outputs: Mapping[str, str] = NONE,
        inputs: int = 1,
        looks_up: bool = False,
        maps: Mapping[str, MapState] = NO_MAPS,
        lists: Mapping[str, ListState] = NO_LISTS,
        fields: Mapping[str, Expiry] = NO_FIELDS,
    ) -> None:
        """outputs: more streams of its rows, by name. inputs: 2 if it takes a second stream, keyed by the same columns.
        looks_up: whether the last stream that it takes is a lookup table (`broadcast`). maps, lists: by their names.
        fields: when fields of the state expire that do so each on its own."""
        self.by = listed(by)
        self.function = function
        self.output = output
        self.state = state
        self.order_by = listed(order_by)
        self.in_order = in_order
        self.times = side_times(event_time)
        self.event_time = event_time if isinstance(event_time, str) else None
        self.expiry = expiry
        self.sides = dict(outputs)
        self.inputs = inputs
        self.looks_up = looks_up
        self.maps = dict(maps)
        self.lists = dict(lists)
        self.fields = dict(fields)

    def spec(self) -> OperatorSpec:
        calls = [] if self.in_order else ["which rows of a key it gets in one call: those of a checkpoint"]
        return OperatorSpec(
            # Timers go by the watermark, whether or not rows have a time.
            event_time=EventTime(inputs=self._timed_inputs(), in_order=self.in_order),
            inputs=Inputs(lookup_table=self.looks_up),
            output=OutputSpec(
                columns=names_in(self.output),
                others=[*self.sides, *self._late_outputs],
                possible_others={LATE_OUTPUT: "in_order=True", LATE_OTHER: "in_order=True and a second stream"},
            ),
            states=[StateSpec(name, expiry) for name, expiry in self._expiries().items()],
            growth=Growth(keeps=self._unbounded_state(), remedy=self._remedy()),
            intervals=ANY_INTERVAL,
            cuts=[*calls, "when timers.clock calls it: by the checkpoints' clock"],
            code=self.function,
        )

    def _expiries(self) -> dict[str, Expiry]:
        """Its states, each with when its rows expire."""
        expiries = {"": self.expiry, TIMERS: NEVER} | ({WAITING: NEVER} if self.in_order else {})
        expiries |= {_field_part(name): expiry for name, expiry in self.fields.items()}
        expiries |= {map_part(name): _expiry_of(declared) for name, declared in self.maps.items()}
        return expiries | {part: _expiry_of(of) for name, of in self.lists.items() for part in list_parts(name)}

    @property
    def _late_outputs(self) -> Sequence[str]:
        return LATE_OUTPUTS[: self.inputs] if self.in_order else ()

    def _ttl(self, state: str, context: OperatorContext) -> Ttl | None:
        return self._expiries()[state].ttl(context)

    def _timed_inputs(self) -> list[TimedInput]:
        if not self.in_order or self._time_problems():
            return []
        whose = ["its"] if self.inputs == 1 else ["the first stream's", "the second stream's"]
        sides = zip(self.times, LATE_OUTPUTS, whose, strict=False)
        return [TimedInput(column, late_output=late, whose=side) for column, late, side in sides]

    def _unbounded_state(self) -> str | None:
        kept = [f"the state of each {joined(self.by)}"] if self._stores_fields else []
        kept += [f"the entries of {joined(self._lasting_entries)}"] if self._lasting_entries else []
        return f"{' and '.join(kept)} that its function does not clear" if kept else None

    def _remedy(self) -> str:
        ways = [Growth().remedy] if self._stores_fields else []
        if self._stores_fields and self.fields:
            others = [name for name in self._state_names() if name not in self.fields]
            named = ", ".join(f'"{name}": "30 days"' for name in others)
            ways = [f"state_ttl={{…, {named}}} (under a new uid if it has state already)"]
        kinds = {name: "MapState" if name in self.maps else "ListState" for name in self._lasting_entries}
        return " and ".join([*ways, *(f'{name}={kind}(…, state_ttl="30 days")' for name, kind in kinds.items())])

    @property
    def _stores_fields(self) -> bool:
        return self.expiry.is_never and not set(self._state_names()) <= self.fields.keys()

    @property
    def _lasting_entries(self) -> list[str]:
        """The maps and lists whose entries do not expire."""
        maps = [name for name, declared in self.maps.items() if _expiry_of(declared).is_never]
        return maps + [name for name, declared in self.lists.items() if _expiry_of(declared).is_never]

    def describe(self) -> Json:
        meaning: Json = {"by": self.by, "output": self.output, "state": self.state, "order_by": self.order_by}
        waits = {"in_order": True, "event_time": self.event_time} if self.in_order else {}
        more: Json = {"outputs": self.sides} if self.sides else {}
        if self.maps:
            more["maps"] = {name: declared.describe() for name, declared in self.maps.items()}
        if self.lists:
            more["lists"] = {name: declared.describe() for name, declared in self.lists.items()}
        if self.fields:
            more["fields"] = {name: expiry.describe() for name, expiry in self.fields.items()}
        if self.inputs > 1 or self.looks_up:
            more |= {"inputs": self.inputs, "looks_up": self.looks_up, "times": list(self.times)}
        return meaning | waits | more | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "in order of event time": self.in_order}
        meaning |= {f"map {name}": f"by {declared.by}" for name, declared in self.maps.items()}
        meaning |= {
            f"field {name}": "kept on its own" if name in self.fields else "kept with its key"
            for name in self._state_names()
        }
        if not self.in_order:
            return meaning
        of_two = {"in order of event time": "of two streams"} if self.inputs > 1 else {}
        return meaning | of_two | {"event_time": list(self.times[: self.inputs])}

    def _time_problems(self) -> list[str]:
        expected = "one column, or one for each stream" if self.inputs > 1 else "one column"
        if self.inputs == 1 and self.times != (self.event_time, self.event_time):
            return [f"event_time={self.times!r}: give {expected}"]
        if len(self.times) != 2 or not all(time is None or (isinstance(time, str) and time) for time in self.times):
            return [f"event_time={self.times!r}: give {expected}"]
        return []

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if not callable(self.function):
            problems.append(f"what it calls is a {type(self.function).__name__}, not a function")
        problems += [
            f"by names {name!r}, as its timers do: rename it in a stage before" for name in self.by if name in TAKEN
        ]
        problems += self.expiry.problems() + self._time_problems()
        names = [*self._state_names(), *METHODS, *self.by]
        problems += map_problems(self.maps, self.by, names) + list_problems(self.lists, self.by, [*names, *self.maps])
        problems += [
            f"state_ttl names {name!r}: expected one of the state's fields, {', '.join(self._state_names())}"
            for name in self.fields
            if name not in self._state_names()
        ]
        problems += [f"{name}: {problem}" for name, expiry in self.fields.items() for problem in expiry.problems()]
        if self.inputs > 1:
            problems += self._problems_of_two()
        taken = [name for name in self.sides if name in (LATE_OUTPUT, LATE_OTHER)]
        problems += [f"outputs: {name!r} is where late rows go: name it otherwise" for name in taken]
        sides = [(f"outputs[{name!r}]", ddl) for name, ddl in self.sides.items()]
        for parameter, ddl in (("output", self.output), ("state", self.state), *sides):
            try:
                columns = parse_ddl(ddl)
            except DdlError as error:
                problems.append(f"{parameter}={ddl!r}: {error}")
                continue
            names = [column.name for column in columns]
            problems += [
                f"{parameter}: {name!r} begins with '_', which is tidegate's" for name in names if name[0] == "_"
            ]
            if parameter == "state":
                problems += [
                    f"state: {name!r} is what state.{name}() is: rename it" for name in names if name in METHODS
                ]
                problems += [f"state: {name!r} is a key, which is kept anyway" for name in names if name in self.by]
        return problems

    def _state_names(self) -> list[str]:
        return names_in(self.state) or []

    def _problems_of_two(self) -> list[str]:
        own = (STREAM, MOMENT, *PREFIXES)
        problems = [
            f"by names {name!r}, which begins as names of tidegate's own do: rename it in a stage before"
            for name in self.by
            if isinstance(name, str) and name.casefold().startswith(own)
        ]
        if self.order_by:
            problems.append(
                "order_by: rows of two streams have no columns in common to be sorted by; leave it out, and they are "
                "sorted by event time"
            )
        return problems

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        table = _in_one_order(inputs[-1]).toArrow() if self.looks_up else None
        rows = inputs[0] if self.inputs == 1 else self._union_inputs(inputs[0], inputs[1], context)
        self._refuse_unfit(rows, context)
        late = {}
        if self.in_order:
            time = need_time(self.event_time, 0, context) if self.inputs == 1 else MOMENT
            ready, late[LATE_OUTPUT] = rows_passed_by_watermark(rows, self.by, time, context, self._late_outputs)
            if self.inputs > 1:
                late = {
                    output: late[LATE_OUTPUT]
                    .where(f"{STREAM} = {place}")
                    .select(*self._added_columns(place, inputs[place]))
                    for place, output in enumerate(self._late_outputs)
                }
        else:
            ready = rows.withColumns({ROW: row_id(rows), AT: F.lit(None).cast("long")})
        rows = context.persist(ready)
        if context.is_bootstrap:
            context = _up_to_newest(rows, context)
        streams_of = [self._columns_of(place, inputs[place]) for place in range(self.inputs)] if self.inputs > 1 else []
        work = self._work(streams_of, table, context)
        keys, called = self._keys_to_call(rows, context)
        called = self._with_lists(self._with_entries(called, rows, context), keys, context)
        results = context.stage(self._call_function(rows, called, work, context))
        self._put(results, context)
        streams = {"": _emitted_rows(results, "_out", 0, self.output)}
        for number, (name, ddl) in enumerate(self.sides.items()):
            streams[name] = _emitted_rows(results, f"_out{number}", SIDE + number, ddl)
        return {**streams, **late}

    def _union_inputs(self, left: DataFrame, right: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the rows of two streams in one frame: keys, and each stream's other columns under names of their
        own."""
        from pyspark.sql import functions as F

        frames = []
        for place, frame in enumerate((left, right)):
            need_keys(frame, self.by, "by", context)
            refuse_reserved_columns(frame, context)
            columns = [F.lit(place).alias(STREAM), self._moment(place, frame, context).alias(MOMENT)]
            names = self._columns_of(place, frame)
            frames.append(frame.select(*columns, *(F.col(quoted(name)).alias(own) for name, own in names.items())))
        kinds = [{name: frame.schema[name].dataType.simpleString() for name in self.by} for frame in frames]
        if kinds[0] != kinds[1]:
            unlike = [name for name in self.by if kinds[0][name] != kinds[1][name]]
            raise Invalid(
                f"operator {context.uid!r}: keys of its two streams differ in type: "
                + ", ".join(f"{name!r} is {kinds[0][name]} here, {kinds[1][name]} there" for name in unlike),
                expected="the same types on both sides",
                help="cast them in a stage before",
                reason="BAD_KEY",
            )
        return frames[0].unionByName(frames[1], allowMissingColumns=True)

    def _moment(self, place: int, frame: DataFrame, context: OperatorContext) -> Column:
        """Return the event time of a stream's rows. Null: it has none, which only matters in order of it."""
        from pyspark.sql import functions as F

        time = self.times[place] or context.event_times[place]
        if self.in_order:
            time = need_time(time, place, context)
        if time is None or not (self.in_order or time in frame.columns):
            return F.lit(None).cast("timestamp")
        return F.timestamp_micros(time_micros(frame, time, f"operator {context.uid!r}"))

    def _columns_of(self, place: int, frame: DataFrame) -> dict[str, str]:
        """Return a stream's columns, each with its name in the frame with the rows of both."""
        return {name: name if name in self.by else f"{PREFIXES[place]}{name}" for name in frame.columns}

    def _added_columns(self, place: int, frame: DataFrame) -> list[Column]:
        from pyspark.sql import functions as F

        return [F.col(quoted(own)).alias(name) for name, own in self._columns_of(place, frame).items()]

    def _states(self, context: OperatorContext) -> KeyedState:
        return context.state(self.by)

    def _put(self, results: DataFrame, context: OperatorContext) -> None:
        """Store the function's changes in its states."""
        keys = [f"_key.{quoted(key)} AS {quoted(key)}" for key in self.by]
        names = [column.name for column in parse_ddl(self.state)]
        values = {name: f"_state.{quoted(name)} AS {quoted(name)}" for name in names}
        with_key = [text for name, text in values.items() if name not in self.fields]
        states, timers = self._states(context), context.state(self.by, TIMERS)
        if with_key:
            states.write_changes(results.where("_kind = 1").selectExpr(*keys, *with_key, "_deleted"), deletes=True)
        for name, kind in self._separate_fields.items():
            alone = results.where(f"_kind = {kind}").selectExpr(*keys, values[name], "_deleted")
            self._field(name, context).write_changes(alone, deletes=True)
        first = "array_min(transform(filter(_timers, t -> t.kind = '{kind}'), t -> t.at)) AS {name}"
        due = [first.format(kind=kind, name=f"due_{kind}") for kind in ("event", "clock")]
        timed = results.where("_kind = 2").selectExpr(*keys, "_timers AS timers", *due, "_deleted")
        timers.write_changes(timed, deletes=True)
        for number, (name, declared) in enumerate(self.maps.items()):
            entry = f"_map{number}"
            named = f"{entry}.{ENTRY} AS {quoted(declared.by)}"
            fields = [f"{entry}.{quoted(field.name)} AS {quoted(field.name)}" for field in declared.fields]
            entries = results.where(f"_kind = {self._map_kind(number)}").selectExpr(*keys, named, *fields, "_deleted")
            self._map(name, context).write_changes(entries, deletes=True)
        for number, (name, listed_as) in enumerate(self.lists.items()):
            entries_of, ends = self._list(name, context)
            kinds, column, places = self._list_kinds(number), f"_list{number}", f"_ends{number}"
            entries_of.write_changes(entry_changes(results, keys, listed_as, column, places, kinds[:2]), deletes=True)
            are = [f"{places}.{end.name} AS {end.name}" for end in ENDS]
            ends.write_changes(results.where(f"_kind = {kinds[2]}").selectExpr(*keys, *are, "_deleted"), deletes=True)

    def _keys_to_call(self, rows: DataFrame, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
        """Return every key that the function is called for; and the same with its state and timers."""
        from pyspark.sql import functions as F

        states, timers = self._states(context), context.state(self.by, TIMERS)
        keys = [quoted(key) for key in self.by]
        key_pairs = zip(keys, self.by, strict=True)
        called_keys = rows.select(*keys)
        if not context.timers_paused and (set_timers := timers.rows()) is not None:
            called_keys = called_keys.unionByName(set_timers.where(_due(context)).select(*keys))
        # Aliases make columns of its own: `rows` meets them again, and Spark must tell them apart.
        called_keys = context.persist(
            called_keys.distinct().select(*(F.col(key).alias(name) for key, name in key_pairs))
        )
        declared = {column.name: column for column in parse_ddl(self.state)}
        with_key = [column for name, column in declared.items() if name not in self.fields]
        self._refuse_moved(states, context)
        with_state = self._with_fields(called_keys, called_keys, states, with_key, context)
        for name in self.fields:
            with_state = self._with_fields(
                with_state, called_keys, self._field(name, context), [declared[name]], context
            )
        found_timers = timers.lookup(called_keys)
        if found_timers is not None:
            found_timers = found_timers.withColumnRenamed("timers", "_timers")
        return called_keys, self._join_state(with_state, found_timers, {"_timers": TIMERS_TYPE})

    def _with_fields(
        self, held: DataFrame, keys: DataFrame, state: KeyedState, fields: Sequence[Field], context: OperatorContext
    ) -> DataFrame:
        """Return each key's row with the fields that a state holds of it."""
        if not fields:
            return held
        stored = state.lookup(keys)
        if stored is not None:
            like = empty_frame(context.spark, [*_fields_of(keys, self.by), *fields])
            stored = recalled(state, stored, like, context)
        return self._join_state(held, stored, {column.name: column.type for column in fields})

    def _refuse_moved(self, states: KeyedState, context: OperatorContext) -> None:
        """Raise Invalid if a field that is to expire on its own has been kept with its key: it would begin anew."""
        known = {field["name"] for field in states.base.columns["fields"]} if states.base is not None else set()
        if moved := [name for name in self.fields if name in known]:
            raise Invalid(
                f"operator {context.uid!r}: state_ttl names {', '.join(map(repr, moved))}, which was kept with its key "
                "until now",
                expected="fields that expire on their own from the beginning: they are kept apart",
                help="name a new field and copy the value in the function, or give the operator a uid of its own",
                reason="STATE_CHANGED",
            )

    def _field(self, name: str, context: OperatorContext) -> KeyedState:
        part = _field_part(name)
        return context.state(self.by, part)

    def _list(self, name: str, context: OperatorContext) -> tuple[KeyedState, KeyedState]:
        """Return the states with a list's entries and ends."""
        entries, ends = list_parts(name)
        return context.state([*self.by, PLACE], entries, grouped_by=self.by), context.state(self.by, ends)

    def _list_kinds(self, number: int) -> tuple[int, int, int]:
        """The kinds of records with an entry of a list, with places that are cleared, and with its ends."""
        first = SIDE + len(self.sides) + len(self.maps) + 3 * number
        return first, first + 1, first + 2

    @property
    def _separate_fields(self) -> dict[str, int]:
        """The fields that are kept on their own, each with the kind of its records."""
        first = SIDE + len(self.sides) + len(self.maps) + 3 * len(self.lists)
        return {name: first + number for number, name in enumerate(self.fields)}

    def _map(self, name: str, context: OperatorContext) -> KeyedState:
        part = map_part(name)
        keys = [*self.by, self.maps[name].by]
        return context.state(keys, part, grouped_by=self.by)

    def _map_kind(self, number: int) -> int:
        """The kind of a record with an entry of a map."""
        return SIDE + len(self.sides) + number

    def _entry_columns(self, declared: MapState, rows: DataFrame) -> list[str]:
        """Return the columns of rows, of one stream or of two, that name a map's entries."""
        names = [declared.by] if self.inputs == 1 else [f"{prefix}{declared.by}" for prefix in PREFIXES]
        return [name for name in names if name in rows.columns]

    def _with_entries(self, called: DataFrame, rows: DataFrame, context: OperatorContext) -> DataFrame:
        """Return each key that the function is called for, with the entries of its maps that its rows name."""
        from pyspark.sql import functions as F

        for number, (name, declared) in enumerate(self.maps.items()):
            columns = self._entry_columns(declared, rows)
            kind = entry_type(name, declared, columns, rows, context)
            struct = _struct([Field(ENTRY, kind), *declared.fields])
            stored = self._map(name, context).lookup(named_entries(declared, columns, rows, self.by))
            grouped = None
            if stored is not None:
                keys = [*_fields_of(rows, self.by), Field(declared.by, kind)]
                like = empty_frame(context.spark, [*keys, *declared.fields])
                entries = recalled(self._map(name, context), stored, like, context)
                fields = [F.col(quoted(field.name)) for field in declared.fields]
                entry = F.struct(F.col(quoted(declared.by)).alias(ENTRY), *fields)
                grouped = entries.groupBy(*map(quoted, self.by)).agg(F.collect_list(entry).alias(f"_map{number}"))
            called = self._join_state(called, grouped, {f"_map{number}": f"array<{struct}>"})
        return called

    def _with_lists(self, called: DataFrame, keys: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the same with the ends of each list; with all its entries where workers cannot read them."""
        from pyspark.sql import functions as F

        key_fields = _fields_of(keys, self.by)
        for number, (name, declared) in enumerate(self.lists.items()):
            entries, ends = self._list(name, context)
            column, entry = f"_list{number}", [Field(PLACE, "bigint"), *declared.fields]
            grouped = None
            if not entries.is_empty and self._files_of(name, context) is None:
                stored = entries.lookup(keys, on=self.by)
                assert stored is not None
                stored = recalled(entries, stored, empty_frame(context.spark, [*key_fields, *entry]), context)
                struct = F.struct(*(F.col(quoted(field.name)) for field in entry))
                grouped = stored.groupBy(*map(quoted, self.by)).agg(F.collect_list(struct).alias(column))
            called = self._join_state(called, grouped, {column: f"array<{_struct(entry)}>"})
            places = ends.lookup(keys)
            if places is not None:
                struct = F.struct(*(F.col(end.name) for end in ENDS))
                places = places.select(*map(quoted, self.by), struct.alias(f"_ends{number}"))
            called = self._join_state(called, places, {f"_ends{number}": _struct(ENDS)})
        if self.lists:
            groups = self._list(next(iter(self.lists)), context)[0].groups
            called = called.withColumn(GROUP_OF_KEY, F.expr(key_group(self.by, groups)))
        return called

    def _files_of(self, name: str, context: OperatorContext) -> EntryFiles | None:
        entries, _ = self._list(name, context)
        ttl = self._ttl(list_parts(name)[0], context)
        return entry_files(entries, self.by, ttl.limit if ttl is not None else None)

    def _join_state(self, keys: DataFrame, stored: DataFrame | None, fields: Mapping[str, str]) -> DataFrame:
        """Return each key with its stored fields, null if there are none."""
        from pyspark.sql import functions as F

        if stored is None:
            return keys.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in fields.items()))
        aliases = {key: f"_key {place}" for place, key in enumerate(self.by)}
        on = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aliases.items())
        stored = stored.select(*(F.col(quoted(key)).alias(name) for key, name in aliases.items()), *map(quoted, fields))
        return keys.join(stored, F.expr(on), "left").drop(*aliases.values())

    def _call_function(
        self, rows: DataFrame, with_state: DataFrame, work: Callable[..., ProcessKernel], context: OperatorContext
    ) -> DataFrame:
        output, state = parse_ddl(self.output), parse_ddl(self.state)
        columns = [
            Field("_kind", "int"),
            Field("_out", _struct(output)),
            Field("_key", _struct(_fields_of(rows, self.by))),
            Field("_state", _struct(state)),
            Field("_timers", TIMERS_TYPE),
            Field("_deleted", "boolean"),
            *(Field(f"_out{number}", _struct(parse_ddl(ddl))) for number, ddl in enumerate(self.sides.values())),
        ]
        for number, (name, declared) in enumerate(self.maps.items()):
            kind = entry_type(name, declared, self._entry_columns(declared, rows), rows, context)
            columns.append(Field(f"_map{number}", _struct([Field(ENTRY, kind), *declared.fields])))
        for number, listed_as in enumerate(self.lists.values()):
            columns.append(Field(f"_list{number}", _struct([Field(PLACE, "bigint"), *listed_as.fields])))
            columns.append(Field(f"_ends{number}", _struct(ENDS)))
        shape = empty_frame(context.spark, columns)
        schema = from_spark(msgspec.json.decode(shape.schema.json()))
        by_time = [name for name in rows.columns if name in (self.times[0] or context.event_times[0], MOMENT)]
        call = work(
            schema=arrow_schema(schema, [column.name for column in columns]),
            rows=rows.columns,
            stored_columns=with_state.columns,
            values=[column.name for column in state],
            order_by=self.order_by or by_time,
        )
        grouped = _numbered(rows, self.by).cogroup(_numbered(with_state, self.by))

        def called(rows: pa.Table, state_rows: pa.Table) -> pa.Table:
            # Spark counts the arguments, that of a method's own object too.
            made = call(rows, state_rows)
            spare_modules()
            return made

        return grouped.applyInArrow(called, shape.schema)

    def _work(
        self, streams: Sequence[Mapping[str, str]], table: pa.Table | None, context: OperatorContext
    ) -> Callable[..., ProcessKernel]:
        """Return what is to be done per key, but for the forms of its rows and records.

        streams: if it takes two, the columns of each, with their names in the frame of both. table: the lookup table.
        """
        marks = context.watermarks
        return partial(
            ProcessKernel,
            uid=context.uid,
            function=self.function,
            keys=self.by,
            clock=context.clock,
            waits=context.timers_paused,
            watermark=marks.now,
            reached=marks.from_rows,
            ends=marks.event_time_ends,
            alone=marks.covers_all_input,
            sides={name: number for number, name in enumerate(self.sides)},
            streams=streams,
            table=table,
            maps={
                name: MapFields(declared.by, [field.name for field in declared.fields], f"_map{number}", kind)
                for number, (name, declared) in enumerate(self.maps.items())
                for kind in (self._map_kind(number),)
            },
            lists={
                name: ListFields(
                    [field.name for field in declared.fields],
                    f"_list{number}",
                    f"_ends{number}",
                    self._list_kinds(number),
                    self._files_of(name, context),
                )
                for number, (name, declared) in enumerate(self.lists.items())
            },
            group=GROUP_OF_KEY,
            separate_fields=self._separate_fields,
        )

    def _refuse_unfit(self, rows: DataFrame, context: OperatorContext) -> None:
        need_keys(rows, self.by, "by", context)
        need_columns(rows, self.order_by, "order_by", context)
        refuse_reserved_columns(rows, context)
        kinds = {name: rows.schema[name].dataType.simpleString() for name in self.order_by}
        if unfit := [f"{name!r} is {kind}" for name, kind in kinds.items() if "<" in kind or kind == "variant"]:
            raise Invalid(
                f"operator {context.uid!r}: order_by names what has no order: {', '.join(unfit)}",
                expected="numbers, texts, times or truth values",
                help="make a column of it in a stage before",
                reason="BAD_ORDER",
            )


def _up_to_newest(rows: DataFrame, context: OperatorContext) -> OperatorContext:
    """Return the context for history: its newest row brings the watermark, so that timers fire as they would have."""
    newest = rows.selectExpr("max(_at)").first()
    if newest is None or newest[0] is None:
        return context
    marks, passed = context.watermarks, at_micros(newest[0] + 1)
    now = passed if marks.now is None else max(marks.now, passed)
    return replace(context, watermarks=replace(marks, now=now, from_rows=now))


def _in_one_order(table: DataFrame) -> DataFrame:
    """Return a lookup table's rows in an order that every attempt finds: a function may take the first that fits."""
    return table.withColumn(ROW, row_id(table)).orderBy(ROW).drop(ROW)


def _emitted_rows(results: DataFrame, column: str, kind: int, ddl: str) -> DataFrame:
    """Return the rows that the function has given for one of its streams."""
    fields = [f"{column}.{quoted(each.name)} AS {quoted(each.name)}" for each in parse_ddl(ddl)]
    return results.where(f"_kind = {kind}").selectExpr(*fields)


def _numbered(frame: DataFrame, by: Sequence[str]) -> GroupedData:
    """Group rows by their keys under numbers as names: Spark stumbles over dots in names on the way to Python."""
    places = [f"c{frame.columns.index(name)}" for name in by]
    named = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
    return with_one_zero(named, places).groupBy(*places)


def _fields_of(frame: DataFrame, names: Sequence[str]) -> list[Field]:
    return [Field(name, sql_type(frame.schema[name].dataType)) for name in names]


def _due(context: OperatorContext) -> Column:
    """Return the condition that a key's timers are due."""
    from pyspark.sql import functions as F

    due = F.col("due_clock") <= F.lit(context.clock)
    mark = context.watermarks.now
    return due if mark is None else due | (F.col("due_event") <= F.lit(mark))


def _field_part(name: str) -> str:
    """Return the name of the state of a field that expires on its own."""
    return f"field-{name}"


def _struct(columns: Sequence[Field]) -> str:
    return f"struct<{', '.join(f'{quoted(column.name)}: {column.type}' for column in columns)}>"
