"""Calls a Python function per key, with the key's new rows, its state, and its timers.

    batch ──keys──┐
    timers ─due───┴▶ keys to call ──▶ their state and timers ─┐
    batch ───────────────────────────────────────────────────┴▶ the function, once per key ──▶ staged, then read for
                                                                                      rows · changed state · timers

The function's results are staged once and read back for all three, so that they are consistent even if the function is
not deterministic. It runs in Spark's Python workers through Arrow. Only a lookup table is collected to the driver.

A call gets all new rows of its key, and then the timers that the watermark has passed fire. `in_order`: rows also wait
until the watermark has passed them, and rows and timers are processed in order of event time, so that the result does
not depend on how the input was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from tidegate.connectors.files.reading import empty_frame
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.connectors.schema.ddl import DdlError, parse_ddl
from tidegate.delta import from_spark
from tidegate.delta.arrow_types import arrow_schema
from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.event_time_buffer import WAITING, split_ready_rows
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
from tidegate.records.moments import from_micros
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

__all__ = ["Process"]


TIMERS = "timers"
TIMERS_TYPE = "array<struct<kind:string,name:string,at:timestamp>>"
TAKEN = (TIMERS, "due_event", "due_clock", "_timers")
"""Columns of the timers' state."""
METHODS = ("clear", "as_dict")
MOMENT = "_moment"
"""The column with a row's time in a frame with the rows of two streams."""
PREFIXES = ("_first_", "_second_")
"""The prefixes of each stream's columns in such a frame."""
LATE_OTHER = "late-other"
"""The output with late rows of the second stream."""
LATE_OUTPUTS: Final = (LATE_OUTPUT, LATE_OTHER)
NONE: Final[Mapping[str, str]] = MappingProxyType({})
NO_MAPS: Final[Mapping[str, MapState]] = MappingProxyType({})
NO_LISTS: Final[Mapping[str, ListState]] = MappingProxyType({})
NO_FIELDS: Final[Mapping[str, Expiry]] = MappingProxyType({})


def _expiry_of(declared: MapState | ListState) -> Expiry:
    """Return when entries expire. A declaration of another type never expires; `problems` reports it."""
    if isinstance(declared, MapState | ListState):
        return declared.expiry
    return NEVER


class Process(Operator):
    """Calls `function(key, rows, state, timers)` for each key that has new rows or a due timer.

    With two streams it calls `function(key, rows, others, state, timers)`. A lookup table is the last argument.
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
        """outputs: the schemas of side outputs. inputs: 2 with a second stream that has the same keys. looks_up:
        whether the last stream is a lookup table (`broadcast`). fields: the fields of the state that expire separately.
        """
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
        if self.in_order:
            calls = []
        else:
            calls = ["which rows of a key it gets in one call: those of a checkpoint"]
        return OperatorSpec(
            # Timers need the watermark, even if rows have no time.
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
        """The states, with the expiry of each."""
        expiries = {"": self.expiry, TIMERS: NEVER}
        if self.in_order:
            expiries[WAITING] = NEVER
        for name, expiry in self.fields.items():
            expiries[_field_part(name)] = expiry
        for name, declared_map in self.maps.items():
            expiries[map_part(name)] = _expiry_of(declared_map)
        for name, declared_list in self.lists.items():
            for part in list_parts(name):
                expiries[part] = _expiry_of(declared_list)
        return expiries

    @property
    def _late_outputs(self) -> Sequence[str]:
        if self.in_order:
            return LATE_OUTPUTS[: self.inputs]
        return ()

    def _timed_inputs(self) -> list[TimedInput]:
        if not self.in_order or self._time_problems():
            return []
        if self.inputs == 1:
            whose = ["its"]
        else:
            whose = ["the first stream's", "the second stream's"]
        sides = zip(self.times, LATE_OUTPUTS, whose, strict=False)
        return [TimedInput(column, late_output=late, whose=side) for column, late, side in sides]

    def _unbounded_state(self) -> str | None:
        unbounded = []
        if self._stores_fields:
            unbounded.append(f"the state of each {joined(self.by)}")
        if self._lasting_entries:
            unbounded.append(f"the entries of {joined(self._lasting_entries)}")
        if not unbounded:
            return None
        return f"{' and '.join(unbounded)} that its function does not clear"

    def _remedy(self) -> str:
        declarations = []
        if self._stores_fields and self.fields:
            lasting = [name for name in self._state_names() if name not in self.fields]
            expiries = ", ".join(f'"{name}": "30 days"' for name in lasting)
            declarations.append(f"state_ttl={{…, {expiries}}} (under a new uid if it has state already)")
        elif self._stores_fields:
            declarations.append(Growth().remedy)
        for name in self._lasting_entries:
            kind = "MapState" if name in self.maps else "ListState"
            declarations.append(f'{name}={kind}(…, state_ttl="30 days")')
        return " and ".join(declarations)

    @property
    def _stores_fields(self) -> bool:
        return self.expiry.is_never and not set(self._state_names()) <= self.fields.keys()

    @property
    def _lasting_entries(self) -> list[str]:
        """The maps and lists whose entries do not expire."""
        maps = [name for name, declared in self.maps.items() if _expiry_of(declared).is_never]
        return maps + [name for name, declared in self.lists.items() if _expiry_of(declared).is_never]

    def describe(self) -> Json:
        described: Json = {"by": self.by, "output": self.output, "state": self.state, "order_by": self.order_by}
        if self.in_order:
            described |= {"in_order": True, "event_time": self.event_time}
        if self.sides:
            described["outputs"] = self.sides
        if self.maps:
            described["maps"] = {name: declared.describe() for name, declared in self.maps.items()}
        if self.lists:
            described["lists"] = {name: declared.describe() for name, declared in self.lists.items()}
        if self.fields:
            described["fields"] = {name: expiry.describe() for name, expiry in self.fields.items()}
        if self.inputs > 1 or self.looks_up:
            described |= {"inputs": self.inputs, "looks_up": self.looks_up, "times": list(self.times)}
        return described | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "in order of event time": self.in_order}
        for name, declared in self.maps.items():
            meaning[f"map {name}"] = f"by {declared.by}"
        for name in self._state_names():
            meaning[f"field {name}"] = "kept on its own" if name in self.fields else "kept with its key"
        if self.in_order:
            if self.inputs > 1:
                meaning["in order of event time"] = "of two streams"
            meaning["event_time"] = list(self.times[: self.inputs])
        return meaning

    def _time_problems(self) -> list[str]:
        if self.inputs > 1:
            expected = "one column, or one for each stream"
        else:
            expected = "one column"
        if self.inputs == 1 and self.times != (self.event_time, self.event_time):
            return [f"event_time={self.times!r}: give {expected}"]
        if len(self.times) != 2 or not all(time is None or (isinstance(time, str) and time) for time in self.times):
            return [f"event_time={self.times!r}: give {expected}"]
        return []

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if not callable(self.function):
            problems.append(f"what it calls is a {type(self.function).__name__}, not a function")
        for name in self.by:
            if name in TAKEN:
                problems.append(f"by names {name!r}, which its timers need: rename it in an upstream stage")
        problems += self.expiry.problems() + self._time_problems()
        names = [*self._state_names(), *METHODS, *self.by]
        problems += map_problems(self.maps, self.by, names) + list_problems(self.lists, self.by, [*names, *self.maps])
        for name, expiry in self.fields.items():
            if name not in self._state_names():
                fields = ", ".join(self._state_names())
                problems.append(f"state_ttl names {name!r}: expected one of the state's fields, {fields}")
            for problem in expiry.problems():
                problems.append(f"{name}: {problem}")
        if self.inputs > 1:
            problems += self._problems_of_two_streams()
        for name in self.sides:
            if name in (LATE_OUTPUT, LATE_OTHER):
                problems.append(f"outputs: {name!r} is the name of the output with late rows: choose another name")
        return problems + self._schema_problems()

    def _schema_problems(self) -> list[str]:
        """Return what is wrong with the schemas of the state and of all outputs."""
        problems = []
        sides = [(f"outputs[{name!r}]", ddl) for name, ddl in self.sides.items()]
        for parameter, ddl in (("output", self.output), ("state", self.state), *sides):
            try:
                names = [column.name for column in parse_ddl(ddl)]
            except DdlError as error:
                problems.append(f"{parameter}={ddl!r}: {error}")
                continue
            for name in names:
                if name[0] == "_":
                    problems.append(f"{parameter}: {name!r} begins with '_', which tidegate reserves")
                if parameter == "state" and name in METHODS:
                    problems.append(f"state: {name!r} is the name of the method state.{name}(): rename it")
                if parameter == "state" and name in self.by:
                    problems.append(f"state: {name!r} is a key, which is stored anyway")
        return problems

    def _state_names(self) -> list[str]:
        return names_in(self.state) or []

    def _problems_of_two_streams(self) -> list[str]:
        problems = []
        for name in self.by:
            if isinstance(name, str) and name.casefold().startswith((STREAM, MOMENT, *PREFIXES)):
                problems.append(f"by names {name!r}, which tidegate reserves: rename it in an upstream stage")
        if self.order_by:
            problems.append(
                "order_by: rows of two streams have no common columns to sort by; leave it out, and they are sorted by "
                "event time"
            )
        return problems

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        table = _in_one_order(inputs[-1]).toArrow() if self.looks_up else None
        if self.inputs == 1:
            rows = inputs[0]
        else:
            rows = self._union_inputs(inputs[0], inputs[1], context)
        self._refuse_invalid_input(rows, context)
        late_outputs = {}
        if self.in_order:
            if self.inputs == 1:
                time = need_time(self.event_time, 0, context)
            else:
                time = MOMENT
            ready, late = split_ready_rows(rows, self.by, time, context, self._late_outputs)
            if self.inputs == 1:
                late_outputs[LATE_OUTPUT] = late
            else:
                for place, output in enumerate(self._late_outputs):
                    columns = self._original_columns(place, inputs[place])
                    late_outputs[output] = late.where(f"{STREAM} = {place}").select(*columns)
        else:
            ready = rows.withColumns({ROW: row_id(rows), AT: F.lit(None).cast("long")})
        rows = context.persist(ready)
        if context.is_bootstrap:
            context = _up_to_newest(rows, context)
        stream_columns = []
        if self.inputs > 1:
            stream_columns = [self._union_names(place, inputs[place]) for place in range(self.inputs)]
        kernel = self._kernel(stream_columns, table, context)
        keys, with_state = self._keys_to_call(rows, context)
        with_state = self._with_lists(self._with_entries(with_state, rows, context), keys, context)
        results = context.stage(self._call_function(rows, with_state, kernel, context))
        self._write_states(results, context)
        streams = {"": _emitted_rows(results, "_out", 0, self.output)}
        for number, (name, ddl) in enumerate(self.sides.items()):
            streams[name] = _emitted_rows(results, f"_out{number}", SIDE + number, ddl)
        return {**streams, **late_outputs}

    def _union_inputs(self, left: DataFrame, right: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the rows of two streams in one frame: keys, and each stream's other columns with a prefix."""
        from pyspark.sql import functions as F

        frames = []
        for place, frame in enumerate((left, right)):
            need_keys(frame, self.by, "by", context)
            refuse_reserved_columns(frame, context)
            columns = [F.lit(place).alias(STREAM), self._moment(place, frame, context).alias(MOMENT)]
            for name, alias in self._union_names(place, frame).items():
                columns.append(F.col(quoted(name)).alias(alias))
            frames.append(frame.select(*columns))
        differences = []
        for name in self.by:
            first_type, second_type = (frame.schema[name].dataType.simpleString() for frame in frames)
            if first_type != second_type:
                differences.append(f"{name!r} is {first_type} in the first, {second_type} in the second")
        if differences:
            raise Invalid(
                f"operator {context.uid!r}: keys of its two streams differ in type: {', '.join(differences)}",
                expected="the same types in both streams",
                help="cast them in an upstream stage",
                reason="BAD_KEY",
            )
        return frames[0].unionByName(frames[1], allowMissingColumns=True)

    def _moment(self, place: int, frame: DataFrame, context: OperatorContext) -> Column:
        """Return the event time of a stream's rows. It may only be null if rows need not be in order."""
        from pyspark.sql import functions as F

        time = self.times[place] or context.event_times[place]
        if self.in_order:
            time = need_time(time, place, context)
        if time is None or not (self.in_order or time in frame.columns):
            return F.lit(None).cast("timestamp")
        return F.timestamp_micros(time_micros(frame, time, f"operator {context.uid!r}"))

    def _union_names(self, place: int, frame: DataFrame) -> dict[str, str]:
        """Return a stream's columns, each with its name in the frame with the rows of both."""
        return {name: name if name in self.by else f"{PREFIXES[place]}{name}" for name in frame.columns}

    def _original_columns(self, place: int, frame: DataFrame) -> list[Column]:
        """Return the columns of a stream, from the frame with the rows of both."""
        from pyspark.sql import functions as F

        return [F.col(quoted(alias)).alias(name) for name, alias in self._union_names(place, frame).items()]

    def _states(self, context: OperatorContext) -> KeyedState:
        return context.state(self.by)

    def _write_states(self, results: DataFrame, context: OperatorContext) -> None:
        """Write the function's changes to the states."""
        keys = [f"_key.{quoted(key)} AS {quoted(key)}" for key in self.by]
        names = [column.name for column in parse_ddl(self.state)]
        values = {name: f"_state.{quoted(name)} AS {quoted(name)}" for name in names}
        with_key = [text for name, text in values.items() if name not in self.fields]
        states, timers = self._states(context), context.state(self.by, TIMERS)
        if with_key:
            states.write_changes(results.where("_kind = 1").selectExpr(*keys, *with_key, "_deleted"), deletes=True)
        for name, kind in self._separate_fields.items():
            changes = results.where(f"_kind = {kind}").selectExpr(*keys, values[name], "_deleted")
            self._field(name, context).write_changes(changes, deletes=True)
        first = "array_min(transform(filter(_timers, t -> t.kind = '{kind}'), t -> t.at)) AS {name}"
        due = [first.format(kind=kind, name=f"due_{kind}") for kind in ("event", "clock")]
        changes = results.where("_kind = 2").selectExpr(*keys, "_timers AS timers", *due, "_deleted")
        timers.write_changes(changes, deletes=True)
        for number, (name, declared) in enumerate(self.maps.items()):
            entry = f"_map{number}"
            columns = [*keys, f"{entry}.{ENTRY} AS {quoted(declared.by)}"]
            for field in declared.fields:
                columns.append(f"{entry}.{quoted(field.name)} AS {quoted(field.name)}")
            changes = results.where(f"_kind = {self._map_kind(number)}").selectExpr(*columns, "_deleted")
            self._map(name, context).write_changes(changes, deletes=True)
        for number, (name, declared_list) in enumerate(self.lists.items()):
            entries, ends = self._list(name, context)
            entry_kind, cleared_kind, ends_kind = self._list_kinds(number)
            ends_column = f"_ends{number}"
            kinds = entry_kind, cleared_kind
            changes = entry_changes(results, keys, declared_list, f"_list{number}", ends_column, kinds)
            entries.write_changes(changes, deletes=True)
            columns = [*keys, *(f"{ends_column}.{end.name} AS {end.name}" for end in ENDS)]
            changes = results.where(f"_kind = {ends_kind}").selectExpr(*columns, "_deleted")
            ends.write_changes(changes, deletes=True)

    def _keys_to_call(self, rows: DataFrame, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
        """Return the keys that the function is called for, and the keys with their state and timers."""
        from pyspark.sql import functions as F

        states, timers = self._states(context), context.state(self.by, TIMERS)
        keys = rows.select(*map(quoted, self.by))
        stored_timers = None if context.timers_paused else timers.rows()
        if stored_timers is not None:
            due_keys = stored_timers.where(_due(context)).select(*map(quoted, self.by))
            keys = keys.unionByName(due_keys)
        # Aliases create new columns, so that Spark can distinguish them from those of `rows` in a later join.
        aliases = (F.col(quoted(name)).alias(name) for name in self.by)
        keys = context.persist(keys.distinct().select(*aliases))
        declared = {column.name: column for column in parse_ddl(self.state)}
        common_fields = [column for name, column in declared.items() if name not in self.fields]
        self._refuse_moved(states, context)
        with_state = self._with_fields(keys, keys, states, common_fields, context)
        for name in self.fields:
            with_state = self._with_fields(with_state, keys, self._field(name, context), [declared[name]], context)
        key_timers = timers.lookup(keys)
        if key_timers is not None:
            key_timers = key_timers.withColumnRenamed("timers", "_timers")
        return keys, self._join_state(with_state, key_timers, {"_timers": TIMERS_TYPE})

    def _with_fields(
        self,
        with_state: DataFrame,
        keys: DataFrame,
        state: KeyedState,
        fields: Sequence[Field],
        context: OperatorContext,
    ) -> DataFrame:
        """Add the fields of a state to each key's row."""
        if not fields:
            return with_state
        stored = state.lookup(keys)
        if stored is not None:
            like = empty_frame(context.spark, [*_fields_of(keys, self.by), *fields])
            stored = recalled(state, stored, like, context)
        return self._join_state(with_state, stored, {column.name: column.type for column in fields})

    def _refuse_moved(self, states: KeyedState, context: OperatorContext) -> None:
        """Raise Invalid if a field that should now expire separately was stored with its key, as its values would be
        lost."""
        if states.base is not None:
            stored = {field["name"] for field in states.base.columns["fields"]}
        else:
            stored = set()
        if moved := [name for name in self.fields if name in stored]:
            raise Invalid(
                f"operator {context.uid!r}: state_ttl names {', '.join(map(repr, moved))}, which was kept with its key "
                "until now",
                expected="fields that have had an expiry of their own from the beginning",
                help="declare a new field and copy the value in the function, or give the operator a new uid",
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
        """The kinds of records with an entry of a list, with its cleared places, and with its ends."""
        first = SIDE + len(self.sides) + len(self.maps) + 3 * number
        return first, first + 1, first + 2

    @property
    def _separate_fields(self) -> dict[str, int]:
        """The fields with separate states, each with the kind of its records."""
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
        """Return the columns of the rows, of one stream or both, that name a map's entries."""
        if self.inputs == 1:
            names = [declared.by]
        else:
            names = [f"{prefix}{declared.by}" for prefix in PREFIXES]
        return [name for name in names if name in rows.columns]

    def _with_entries(self, with_state: DataFrame, rows: DataFrame, context: OperatorContext) -> DataFrame:
        """Add the entries of each key's maps that its rows name."""
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
            with_state = self._join_state(with_state, grouped, {f"_map{number}": f"array<{struct}>"})
        return with_state

    def _with_lists(self, with_state: DataFrame, keys: DataFrame, context: OperatorContext) -> DataFrame:
        """Add the ends of each key's lists, and all of their entries if workers cannot read them from files."""
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
            with_state = self._join_state(with_state, grouped, {column: f"array<{_struct(entry)}>"})
            stored_ends = ends.lookup(keys)
            if stored_ends is not None:
                struct = F.struct(*(F.col(end.name) for end in ENDS))
                stored_ends = stored_ends.select(*map(quoted, self.by), struct.alias(f"_ends{number}"))
            with_state = self._join_state(with_state, stored_ends, {f"_ends{number}": _struct(ENDS)})
        if self.lists:
            entries, _ = self._list(next(iter(self.lists)), context)
            with_state = with_state.withColumn(GROUP_OF_KEY, F.expr(key_group(self.by, entries.groups)))
        return with_state

    def _files_of(self, name: str, context: OperatorContext) -> EntryFiles | None:
        entries, _ = self._list(name, context)
        return entry_files(entries, self.by, entries.ttl.limit if entries.ttl is not None else None)

    def _join_state(self, keys: DataFrame, stored: DataFrame | None, fields: Mapping[str, str]) -> DataFrame:
        """Return each key with its stored fields, null if there are none."""
        from pyspark.sql import functions as F

        if stored is None:
            return keys.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in fields.items()))
        aliases = {key: f"_key {number}" for number, key in enumerate(self.by)}
        is_match = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aliases.items())
        stored = stored.select(*(F.col(quoted(key)).alias(name) for key, name in aliases.items()), *map(quoted, fields))
        return keys.join(stored, F.expr(is_match), "left").drop(*aliases.values())

    def _call_function(
        self, rows: DataFrame, with_state: DataFrame, kernel: Callable[..., ProcessKernel], context: OperatorContext
    ) -> DataFrame:
        """Return the records that the function's calls result in. kernel: the kernel, without its schemas."""
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
        by_time = []
        for name in rows.columns:
            if name in (self.times[0] or context.event_times[0], MOMENT):
                by_time.append(name)
        call = kernel(
            schema=arrow_schema(schema, [column.name for column in columns]),
            rows=rows.columns,
            stored_columns=with_state.columns,
            values=[column.name for column in state],
            order_by=self.order_by or by_time,
        )
        grouped = _numbered(rows, self.by).cogroup(_numbered(with_state, self.by))

        def call_for_key(rows: pa.Table, state_rows: pa.Table) -> pa.Table:
            # A function, because Spark counts the arguments of a callable object with `self`.
            records = call(rows, state_rows)
            spare_modules()
            return records

        return grouped.applyInArrow(call_for_key, shape.schema)

    def _kernel(
        self, streams: Sequence[Mapping[str, str]], table: pa.Table | None, context: OperatorContext
    ) -> Callable[..., ProcessKernel]:
        """Return the kernel, without the schemas of its rows and records.

        streams: with two streams, the columns of each, with their names in the frame of both. table: the lookup table.
        """
        maps = {}
        for number, (name, declared_map) in enumerate(self.maps.items()):
            fields = [field.name for field in declared_map.fields]
            maps[name] = MapFields(declared_map.by, fields, f"_map{number}", self._map_kind(number))
        lists = {}
        for number, (name, declared_list) in enumerate(self.lists.items()):
            lists[name] = ListFields(
                [field.name for field in declared_list.fields],
                f"_list{number}",
                f"_ends{number}",
                self._list_kinds(number),
                self._files_of(name, context),
            )
        watermarks = context.watermarks
        return partial(
            ProcessKernel,
            uid=context.uid,
            function=self.function,
            keys=self.by,
            clock=context.clock,
            waits=context.timers_paused,
            watermark=watermarks.now,
            reached=watermarks.from_rows,
            ends=watermarks.event_time_ends,
            alone=watermarks.covers_all_input,
            sides={name: number for number, name in enumerate(self.sides)},
            streams=streams,
            table=table,
            maps=maps,
            lists=lists,
            group=GROUP_OF_KEY,
            separate_fields=self._separate_fields,
        )

    def _refuse_invalid_input(self, rows: DataFrame, context: OperatorContext) -> None:
        need_keys(rows, self.by, "by", context)
        need_columns(rows, self.order_by, "order_by", context)
        refuse_reserved_columns(rows, context)
        problems = []
        for name in self.order_by:
            kind = rows.schema[name].dataType.simpleString()
            if "<" in kind or kind == "variant":
                problems.append(f"{name!r} is {kind}")
        if problems:
            raise Invalid(
                f"operator {context.uid!r}: order_by names what has no order: {', '.join(problems)}",
                expected="numbers, texts, times or truth values",
                help="compute a column from it in an upstream stage",
                reason="BAD_ORDER",
            )


def _up_to_newest(rows: DataFrame, context: OperatorContext) -> OperatorContext:
    """Return the context for a bootstrap, with the newest row's time as the watermark, so that timers fire."""
    newest = rows.selectExpr("max(_at)").first()
    if newest is None or newest[0] is None:
        return context
    watermarks, now = context.watermarks, from_micros(newest[0] + 1)
    if watermarks.now is not None:
        now = max(watermarks.now, now)
    return replace(context, watermarks=replace(watermarks, now=now, from_rows=now))


def _in_one_order(table: DataFrame) -> DataFrame:
    """Return a lookup table's rows in the same order in every attempt, because a function may take the first match."""
    return table.withColumn(ROW, row_id(table)).orderBy(ROW).drop(ROW)


def _emitted_rows(results: DataFrame, column: str, kind: int, ddl: str) -> DataFrame:
    """Return the rows that the function has emitted into one of its streams."""
    fields = []
    for field in parse_ddl(ddl):
        fields.append(f"{column}.{quoted(field.name)} AS {quoted(field.name)}")
    return results.where(f"_kind = {kind}").selectExpr(*fields)


def _numbered(frame: DataFrame, by: Sequence[str]) -> GroupedData:
    """Number the columns, because Spark fails on dots in names on the way to Python, and group the rows by key."""
    keys = [f"c{frame.columns.index(name)}" for name in by]
    numbered = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
    return with_one_zero(numbered, keys).groupBy(*keys)


def _fields_of(frame: DataFrame, names: Sequence[str]) -> list[Field]:
    return [Field(name, sql_type(frame.schema[name].dataType)) for name in names]


def _due(context: OperatorContext) -> Column:
    """Return the condition that one of a key's timers is due."""
    from pyspark.sql import functions as F

    is_due = F.col("due_clock") <= F.lit(context.clock)
    watermark = context.watermarks.now
    if watermark is not None:
        is_due |= F.col("due_event") <= F.lit(watermark)
    return is_due


def _field_part(name: str) -> str:
    """Return the name of the state of a field that expires separately."""
    return f"field-{name}"


def _struct(columns: Sequence[Field]) -> str:
    return f"struct<{', '.join(f'{quoted(column.name)}: {column.type}' for column in columns)}>"
