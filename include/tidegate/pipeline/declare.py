"""What users write to declare a pipeline: `Pipeline` and `Stream`. Nothing here runs Spark or reads data."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import msgspec

from tidegate.config.keys import duration_text
from tidegate.connectors.adaptive import Adaptive
from tidegate.connectors.sink import Sink
from tidegate.connectors.source import Source
from tidegate.errors import Invalid
from tidegate.gates.base import Gate
from tidegate.gates.contracts.gate import Contract
from tidegate.gates.new_columns import NewColumns
from tidegate.gates.target import Refused, TargetRules, target_gate_name
from tidegate.operators.aggregate import Aggregate
from tidegate.operators.base import Operator
from tidegate.operators.broadcast import Broadcast
from tidegate.operators.deduplicate import Deduplicate
from tidegate.operators.expiry import Expiry
from tidegate.operators.join.as_of import AsOfJoin
from tidegate.operators.join.join import How, IntervalJoin, LatestJoin, TableJoin
from tidegate.operators.latest import Latest, TopN
from tidegate.operators.over import OverRows
from tidegate.operators.process.list_state import ListState
from tidegate.operators.process.map_state import MapState
from tidegate.operators.process.process import Process
from tidegate.operators.retractions.every import EmitEvery
from tidegate.operators.window.counted import CountWindow
from tidegate.operators.window.top_n import WindowTopN
from tidegate.operators.window.window import Window
from tidegate.pipeline.graph.graph import Graph, build_graph
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, SinkNode, SourceNode, StageNode
from tidegate.pipeline.hooks import (
    Callbacks,
    Hook,
    OnSuspended,
    Preparing,
    RestoredAfterSwap,
    Settled,
    Triggering,
    make_hook,
    once_each,
)
from tidegate.pipeline.promises import checked_promise
from tidegate.pipeline.selection import refuse_unfit, selection
from tidegate.pipeline.union import union
from tidegate.records.codec import sha256
from tidegate.records.names import check_name, listed
from tidegate.records.place import Place
from tidegate.records.records import Json

__all__ = ["Pipeline", "Stream", "generated_name", "job_of"]


MAX_NAME_LENGTH = 63
HASH_LENGTH = 8


def generated_name(words: Iterable[object]) -> str:
    """Join the words into one name.

    If the words are too long, or have characters that a name may not have, the name ends with a hash of them.
    """
    texts = [str(word) for word in words]
    cleaned = [re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_") for text in texts]
    name = "-".join(filter(None, cleaned))
    is_plain = all(re.fullmatch(r"[a-z0-9_. -]+", text) for text in texts)
    if is_plain and 0 < len(name) <= MAX_NAME_LENGTH:
        return name
    prefix = name[: MAX_NAME_LENGTH - HASH_LENGTH - 1].strip("-_")
    suffix = sha256(msgspec.json.encode(texts))[:HASH_LENGTH]
    return f"{prefix}-{suffix}".lstrip("-")


class Stream:
    """The rows that a source, a stage, an operator or a gate emits.

    Its methods declare what happens to these rows. Most of them return a new stream, so that calls can be chained:

        orders = pipeline.source("orders", Files("landing/*.json", schema="customer long, amount double"))
        orders.where("amount > 0").aggregate(by="customer", spent="sum(amount)").sink("totals", DeltaUpsert(…))
    """

    def __init__(
        self, pipeline: Pipeline, name: str, outputs: tuple[str, ...] = (), into_job: str | None = None
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self._outputs = outputs
        self.into_job = into_job

    def job(
        self,
        name: str,
        *,
        aligned: bool = False,
        spark: Mapping[str, object] | None = None,
        pool: str | None = None,
        pool_slots: int | None = None,
        queue: str | None = None,
        executor: str | None = None,
        priority_weight: int | None = None,
    ) -> Stream:
        """Continue in another job, which is an Airflow task with a Spark job and an ack of its own.

            scored = clean.job("scoring").process(…)

        Operators declared on the returned stream, and those after them, belong to the job `name`. Jobs run in parallel.
        A channel carries the rows of this stream to all jobs that read it: they are staged once.

        name: the job's name. Several streams may continue in the same job.
        aligned: every checkpoint waits for this job, even with `unaligned = true`.
        spark: Spark configuration of this job, such as {"spark.executor.memory": "8g"}. It overrides `spark.conf`.
            With `spark.mode = "submit"` any key works, otherwise only those that a session can change (`spark.sql.…`).
        pool, pool_slots, queue, executor, priority_weight: passed to the job's task, as for any operator in Airflow.

        All but the first two are settings, such as `jobs.scoring.spark.executor.memory` and `jobs.scoring.pool`. They
        are not part of the pipeline's code: changing them affects no state and no checkpoint.
        """
        if aligned:
            self.pipeline._aligned.add(name)
        airflow = {
            "pool": pool,
            "pool_slots": pool_slots,
            "queue": queue,
            "executor": executor,
            "priority_weight": priority_weight,
        }
        options = {option: value for option, value in airflow.items() if value is not None}
        self.pipeline._set_for_job(name, {**options, **_spark_keys(name, spark)})
        return Stream(self.pipeline, self.name, self._outputs, name)

    def __getitem__(self, output: str) -> Stream:
        """Return a further output of this stage or operator, such as `window["late"]`."""
        if output not in self._outputs:
            raise self._no_output(output)
        return Stream(self.pipeline, f"{self.name}.{output}", (), self.into_job)

    def _no_output(self, output: str) -> Invalid:
        kind, declaration = "stage", "@pipeline.stage(…, outputs=[…])"
        for node in self.pipeline._stages:
            if node.name == self.name and isinstance(node, OperatorNode):
                kind, declaration = node.operator.kind, node.spec.output.possible_others.get(output, "")
        if declaration:
            expected, help = f"one declared with {declaration}", f"declare it: {declaration}"
        else:
            expected, help = "the stream itself", "use an output that it has"
        return Invalid(
            f"{kind} {self.name!r} has no output {output!r}",
            expected=", ".join(self._outputs) or expected,
            help=help,
            reason="BAD_PIPELINE",
        )

    def apply(self, operator: Operator, *others: Stream, uid: str | None = None) -> Stream:
        """Apply an operator of your own to this stream, and to `others` if it has several inputs.

            smooth = readings.apply(MovingAverage(by="sensor"), uid="smooth")

        operator: the operator. The methods below apply those that tidegate ships with.
        others: the further input streams, in the order in which the operator expects them.
        uid: identifies the operator's state permanently. The default consists of the operator's kind, its input streams
            and its key, such as "aggregate-orders-customer"; its place in the code does not matter. Choose a uid
            yourself if the inputs or the key may change one day, or if two operators would get the same default.
        """
        inputs = (self.name, *(self.pipeline._stream_name(other) for other in others))
        identity = operator.spec().identity
        name = uid or generated_name([operator.kind, *map(self.pipeline._ungated, inputs), *identity])
        node = OperatorNode(name, operator, inputs, job_of((self, *others)), not uid)
        self.pipeline._stages.append(node)
        return Stream(self.pipeline, name, node.outputs)

    def aggregate(
        self,
        *,
        by: str | Sequence[str],
        uid: str | None = None,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        **functions: str,
    ) -> Stream:
        """Keep running totals per key, as one row for each key.

            orders.aggregate(by="customer", spent="sum(amount)", orders="count(*)")

        Each checkpoint emits the rows of the keys whose totals changed. They replace earlier rows of the same keys, so
        the sink must upsert.

        by: the key columns. `by=[]` computes one row, the totals over all rows.
        state_ttl: how long after its last change a key's totals are forgotten, such as "30 days". If the key occurs
            again, they start from zero. By default they are kept forever.
        ttl_time: whether `state_ttl` is measured by the clock ("processing") or by the watermark ("event").
        uid: identifies the state, as for `apply`.
        functions: an SQL aggregate for each output column.
        """
        return self.apply(Aggregate(by, functions, Expiry(state_ttl, ttl_time)), uid=uid)

    def process(
        self,
        *,
        by: str | Sequence[str],
        output: str,
        state: str,
        other: Stream | None = None,
        lookup: Stream | None = None,
        outputs: Mapping[str, str] | None = None,
        maps: Mapping[str, MapState] | None = None,
        lists: Mapping[str, ListState] | None = None,
        order_by: str | Sequence[str] = (),
        in_order: bool = False,
        event_time: str | tuple[str | None, str | None] | None = None,
        state_ttl: str | float | Mapping[str, str | float] | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Callable[[Callable[..., Any]], Stream]:
        """Decorate a function that is called for each key that has new rows or a due timer.

            @orders.process(by="customer", state="spent double, seen array<long>", output="customer long, alert string")
            def alerts(key, rows, state, timers):
                ...                          # rows: an Arrow table; state.spent, state.seen; timers.event(at)
                yield {"customer": key["customer"], "alert": "…"}

        The function may be called several times for the same checkpoint, of which one call counts. At the end of event
        time (`stop --drain`) each timer fires once more. A timer that is set then never fires.

        by: the key columns.
        output: the schema of the rows that the function yields, in DDL.
        state: the schema of a key's state, in DDL. Lists and maps start empty, all other fields as None.
            `state.clear()` forgets the key.
        other: a second stream with the same key columns. The function gets its rows, too, as in
            `def alerts(key, orders, payments, state, timers)`.
        lookup: a lookup table (`broadcast`). The function gets all of it as its last argument, an Arrow table. A change
            of the table alone does not call the function.
        outputs: further output streams with their schemas, such as {"big": "customer long, amount double"}. The
            function emits to one by its name, `yield "big", {"customer": …}`, and the stream is `alerts["big"]`.
        maps: maps of any size, such as {"bought": MapState(by="product", state="n long")}, for
            `state.bought[row["product"]].n`. A call reads only the entries that its own rows name.
        lists: lists of any size, such as {"visits": ListState("page string, at timestamp")}.
            `state.visits.append({"page": …})` writes only this entry, `for visit in state.visits` reads entry by entry,
            and `state.visits.clear()` forgets all.
        order_by: the columns by which a key's rows are sorted. The default is event time.
        in_order: hold rows back until the watermark has passed them, and call the function in order of event time, once
            per moment, with timers in between. The result then does not depend on how the input is split into
            checkpoints. Late rows go to the output "late".
        event_time: the column with the time, as for `window`; a pair if two streams have different columns.
        state_ttl: when a key's state is forgotten, as for `aggregate`. Its timers stay. A mapping sets the time per
            field, such as {"last": "1 day", "n": "90 days"}; fields that it does not name are kept forever.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`. The default is the function's name.
        """

        def declare(function: Callable[..., Any]) -> Stream:
            name = uid or getattr(function, "__name__", "process").replace("<lambda>", "process")
            further_inputs = [stream for stream in (other, lookup) if stream is not None]
            if isinstance(state_ttl, Mapping):
                expiry = Expiry(None, ttl_time)
                field_expiries = {field: Expiry(ttl, ttl_time) for field, ttl in state_ttl.items()}
            else:
                expiry = Expiry(state_ttl, ttl_time)
                field_expiries = {}
            operator = Process(
                by,
                function,
                output,
                state,
                [order_by] if isinstance(order_by, str) else order_by,
                in_order=in_order,
                event_time=event_time,
                expiry=expiry,
                outputs=outputs or {},
                inputs=1 if other is None else 2,
                looks_up=lookup is not None,
                maps=maps or {},
                lists=lists or {},
                fields=field_expiries,
            )
            return self.apply(operator, *further_inputs, uid=name)

        return declare

    def window(
        self,
        *,
        tumbling: float | str | None = None,
        hopping: tuple[float | str, float | str] | None = None,
        session: float | str | None = None,
        count: int | None = None,
        by: str | Sequence[str] = (),
        time: str = "event",
        event_time: str | None = None,
        emit: str = "close",
        late: str = "drop",
        allowed_lateness: float | str = 0,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
        **functions: str,
    ) -> Stream:
        """Aggregate rows per window and key: into window_start, window_end, the key columns and the results.

            orders.window(tumbling="1 hour", by="country", revenue="sum(amount)")
            clicks.window(session="30 min", by="user", clicks="count(*)", emit="update")

        Choose one kind of window:

        tumbling: windows of this size, side by side, such as "1 hour".
        hopping: overlapping windows, as (size, step), such as ("1 hour", "10 min").
        session: windows that end after this long without a row of the key, such as "30 min".
        count: windows of this many rows of a key, in order of event time. Late rows go to the output "late".

        And, optionally:

        by: the key columns. By default a window has the rows of all keys.
        time: "event", or "processing" to use the time at which a row's checkpoint was planned.
        event_time: the column with the time, if it is not the one that the sources declare.
        emit: "close" emits a window once, when it is complete. "update" emits it in every checkpoint that changes it,
            so the sink must upsert.
        late: "drop" only counts late rows. "side" emits them as the stream `window["late"]`.
        allowed_lateness: how long a window accepts late rows after the watermark has passed its end. Each time, it is
            emitted again.
        state_ttl: with `count`, how long after its last row a window that is not full is forgotten.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        functions: an SQL aggregate for each output column.
        """
        kinds = {"tumbling": tumbling, "hopping": hopping, "session": session}
        if count is not None:
            time_options = {**kinds, "emit": emit, "late": late, "allowed_lateness": allowed_lateness, "time": time}
            defaults = {"emit": "close", "late": "drop", "allowed_lateness": 0, "time": "event"}
            unfit = [option for option, value in time_options.items() if value != defaults.get(option)]
            if unfit:
                raise Invalid(
                    f"a window of {count!r} rows also has {', '.join(unfit)}",
                    expected="count, by, event_time and results",
                    help=f"leave out {', '.join(unfit)}: it takes rows in order, and is emitted once, when it is full",
                    reason="BAD_PIPELINE",
                )
            expiry = Expiry(state_ttl, ttl_time)
            return self.apply(CountWindow(listed(by), functions, count, event_time, expiry), uid=uid)
        if state_ttl is not None:
            raise Invalid(
                f"a window of time also has state_ttl={state_ttl!r}",
                expected="state_ttl only with `count`: such a window may never be full",
                help="leave it out: a window of time is forgotten once it is closed",
                reason="BAD_PIPELINE",
            )
        window = Window(
            by,
            functions,
            **kinds,
            event_time=event_time,
            emit=emit,
            late=late,
            allowed_lateness=allowed_lateness,
            time=time,
        )
        return self.apply(window, uid=uid)

    def over(
        self,
        *,
        by: str | Sequence[str] = (),
        rows: int | None = None,
        event_time: str | None = None,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
        **functions: str,
    ) -> Stream:
        """Add columns to each row, computed over the rows of its key up to this one, in order of event time.

            orders.over(by="customer", spent="sum(amount)", before="lag(amount)", nth="row_number()")

        A row waits until the watermark has passed it, and is emitted once. Late rows go to the output "late".

        by: the key columns. By default all rows are in one order.
        rows: aggregate only the last this many rows, including this one. The default is all rows so far.
        event_time: the column with the time, as for `window`.
        state_ttl: when a key's rows are forgotten, as for `aggregate`. Its sums and row numbers then start again.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        functions: for each new column one of sum, count, count_if, avg, min and max; `lag(x)` or `lag(x, 3)`, a value
            of an earlier row; or `row_number()`.
        """
        expiry = Expiry(state_ttl, ttl_time)
        return self.apply(OverRows(listed(by), functions, rows, event_time, expiry), uid=uid)

    def every(self, checkpoints: int, *, uid: str | None = None) -> Stream:
        """Emit the changes of this stream only in every `checkpoints`-th checkpoint.

            live = orders.window(tumbling="1 day", revenue="sum(amount)", emit="update").every(10)

        Rows that are emitted and retracted in between cancel out. At the end of event time, everything pending is
        emitted.
        """
        return self.apply(EmitEvery(checkpoints), uid=uid)

    def select(self, *columns: str, where: str | None = None, name: str | None = None) -> Stream:
        """Select columns or SQL expressions of each row.

            orders.select("id", "amount * 2 AS twice", where="amount > 0")

        columns: column names and expressions over one row. The default is "*", all columns.
        where: a condition on this stream's columns. Only rows for which it is true are kept.
        name: the name of the new stream, from which the default uids of operators after it are made. The default is
            this stream's name followed by "-select", whatever the columns are.
        """
        refuse_unfit(f"select of {self.name!r}", columns if where is None else [*columns, where])
        return self._select("select", columns, where, name)

    def where(self, condition: str, *, name: str | None = None) -> Stream:
        """Keep only the rows for which an SQL condition is true, as in `orders.where("amount > 0")`.

        name: the name of the new stream. The default is this stream's name followed by "-where".
        """
        refuse_unfit(f"where of {self.name!r}", [condition])
        return self._select("where", (), condition, name)

    def _select(self, kind: str, columns: Sequence[str], where: str | None, name: str | None) -> Stream:
        stage_name = name or generated_name([self.pipeline._ungated(self.name), kind])
        return self.pipeline.stage(self, name=stage_name)(selection(where, columns or ["*"]))

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """Emit the rows of this stream and of other streams with the same columns.

            everything = orders.union(returns, corrections)

        name: the name of the new stream. The default is made of the names of its inputs.
        """
        if not others:
            raise Invalid(
                f"a union of {self.name!r} with nothing",
                expected="at least one more stream, as in orders.union(returns)",
                help="pass the other streams, or leave out the union",
                reason="BAD_PIPELINE",
            )
        inputs = [self.name, *(self.pipeline._stream_name(other) for other in others)]
        stage_name = name or generated_name(["union", *map(self.pipeline._ungated, inputs)])
        return self.pipeline.stage(self, *others, name=stage_name)(union)

    def deduplicate(
        self,
        *,
        by: str | Sequence[str],
        within: str | None = None,
        event_time: str | None = None,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep only the first row of each key.

            orders.deduplicate(by="order_id", within="1 day")

        Without `within`, the row that is kept comes from the first checkpoint that has the key. Of several in that
        checkpoint it is the earliest in event time, or any of them if the stream has no event time. This makes no
        difference for exact copies. To choose among rows that differ, use `top_n(1, …)`.

        by: the key columns.
        within: rows of a key that are less than this apart in event time are duplicates. Late rows go to the output
            "late". By default, keys are remembered forever.
        event_time: the column with the time, if the sources do not declare one.
        state_ttl: without `within`, how long after its first row a key is remembered.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        """
        return self.apply(Deduplicate(by, within, event_time, Expiry(state_ttl, ttl_time)), uid=uid)

    def latest(
        self,
        *,
        by: str | Sequence[str],
        order_by: str | Sequence[str],
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep the row of each key that has the greatest `order_by`. The sink must upsert.

            customers = changes.latest(by="customer", order_by="changed_at")

        by: the key columns.
        order_by: the columns to compare.
        state_ttl: how long after its last change a key is forgotten.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        """
        return self.apply(Latest(by, order_by, Expiry(state_ttl, ttl_time)), uid=uid)

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str] = (),
        order_by: str | Sequence[str],
        rank: str = "row_number",
        tumbling: float | str | None = None,
        event_time: str | None = None,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep the first `n` rows of each key, numbered in the column `rank`.

            orders.top_n(3, by="country", order_by="amount desc")
            orders.window(tumbling="1 hour", by="country", spent="sum(amount)").top_n(
                3, by="window_start", order_by="spent desc"
            )

        The sink must upsert, by the key and `rank`. In the second example the rows are final and no state is kept,
        since all rows of a closed window arrive in one checkpoint. This needs `window_start` or `window_end` in `by`,
        and neither a stage nor a union after the window.

        by: the key columns. By default the first rows of the whole stream are kept.
        order_by: the columns that order the rows, each with `desc` if the greatest is the first.
        rank: how rows with equal `order_by` are numbered: "row_number" as 1, 2, 3, 4 (ordered by all of their values),
            "rank" as 1, 2, 2, 4, "dense_rank" as 1, 2, 2, 3. The last two may keep more than `n` rows.
        tumbling: rank per window of this size, such as "1 hour". The rows are emitted once, with window_start and
            window_end, when the window is complete. Late rows go to the output "late".
        event_time: with `tumbling`, the column with the time, as for `window`.
        state_ttl: how long after its arrival a row is forgotten.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        """
        if tumbling is not None and state_ttl is not None:
            raise Invalid(
                f"top_n has tumbling={tumbling!r} and state_ttl={state_ttl!r}",
                expected="one of them",
                help="leave out state_ttl: rows are forgotten with their window",
                reason="BAD_PIPELINE",
            )
        if tumbling is None and event_time is not None:
            raise Invalid(
                f"top_n has event_time={event_time!r}, and no windows",
                expected='tumbling="1 hour", if it is to use event time',
                help="leave out event_time, or add tumbling",
                reason="BAD_PIPELINE",
            )
        if tumbling is not None:
            return self.apply(WindowTopN(n, tumbling, listed(by), listed(order_by), rank, event_time), uid=uid)
        complete_by = self.pipeline._completing_columns_of(self.name)
        is_final = not complete_by.isdisjoint(listed(by))
        return self.apply(TopN(n, by, order_by, rank, at_once=is_final, expiry=Expiry(state_ttl, ttl_time)), uid=uid)

    def broadcast(
        self,
        *,
        by: str | Sequence[str],
        order_by: str | Sequence[str],
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep a small lookup table: the latest row of each key. Every checkpoint emits the whole table.

            rules = changes.broadcast(by="country", order_by="changed_at")

            @pipeline.stage(orders, rules)
            def taxed(orders, rules):
                return orders.join(rules, "country", "left")

        Spark sends the whole table to every worker, so a join with it does not shuffle the other side. Rows are joined
        with the table as of their own checkpoint; later changes of the table do not affect earlier results.

        by, order_by, state_ttl, ttl_time, uid: as for `latest`.
        """
        return self.apply(Broadcast(by, order_by, Expiry(state_ttl, ttl_time)), uid=uid)

    def join(
        self,
        *others: Stream,
        table: str | None = None,
        on: str | Sequence[str] | Mapping[str, str],
        within: str | tuple[str, str] | None = None,
        as_of: bool = False,
        how: How = "inner",
        prefix: str | Sequence[str | None] | None = None,
        event_time: str | Sequence[str | None] | None = None,
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Join this stream with other streams, or with a Delta table, by key.

            orders.join(payments, on="id")                                  # all pairs, however far apart in time
            orders.join(payments, on="id", within=("-5 min", "1 hour"))     # pairs that are close in event time
            orders.join(rates, on="currency", as_of=True)                   # the rate that applied at the order's time
            orders.join(payments, parcels, on="id")                         # three streams: one join after the other
            orders.join(table="tables/customers", on="customer")            # a Delta table

        Without `within` and `as_of`, all rows of the streams are kept as state. If the inputs are only ever appended
        to, the output of an inner or semi join is, too. All other such joins retract and replace rows, so the sink must
        upsert.

        on: the columns that both sides share. If the names differ, a mapping from this stream's name to the other's,
            such as {"seller": "id"}. The output has each key column once, under this stream's name.
        table: the table's path. All attempts at a checkpoint read the version that was current when it was planned.
        within: how far apart in event time the rows may be, inclusive: "1 hour" in both directions, or
            ("-10 min", "1 hour") if the other row may be up to 10 minutes earlier and up to an hour later.
        as_of: treat the other stream's rows as versions. Each row of this stream is joined with the newest version of
            its key that is not newer than the row. It waits until the watermark has passed it, and is emitted once.
        how: "inner", "left", "right", "full", "semi" (rows of this stream that have a partner, without the other's
            columns) or "anti" (those that have none). With `within`, a row without a partner is emitted once no partner
            can arrive anymore.
        prefix: is put before the other stream's column names that also occur in this one; for several streams, one
            prefix each.
        event_time: the column with the time, if the sources do not declare it: one for all streams, or one for each
            stream, with this one first.
        state_ttl: without `within`, how long after its arrival a row is forgotten; with `as_of`, a version.
        ttl_time: as for `aggregate`.
        uid: identifies the state, as for `apply`.
        """
        has_event_time = within is not None or event_time is not None or as_of
        if bool(others) == (table is not None) or (table is not None and has_event_time):
            raise Invalid(
                "a join is with other streams or with a table, and a table has no within, no as_of and no event_time",
                expected='orders.join(payments, on="id", …) or orders.join(table="tables/customers", on="id", …)',
                help="pass either streams or a table",
                reason="BAD_PIPELINE",
            )
        if as_of and within is not None:
            raise Invalid(
                f"a join with as_of=True looks up one version and has no bounds, but it has within={within!r}",
                expected="one of the two",
                help="leave out within; a stage after the join can drop rows whose version is too old",
                reason="BAD_PIPELINE",
            )
        prefixes = _one_for_each("prefix", prefix, len(others) or 1)
        if table is not None:
            return self.apply(TableJoin(table, on, how, prefixes[0]), uid=uid)
        if len(others) > 1 and how in ("right", "full"):
            raise Invalid(
                f"a join of {len(others) + 1} streams has how={how!r}, so the rows without a partner would depend on "
                "the order of the joins",
                expected='"inner", "left", "semi" or "anti" for several streams',
                help=f'join two streams, and the result with the next one: a.join(b, …, how="{how}").join(c, …)',
                reason="BAD_PIPELINE",
            )
        if state_ttl is not None and within is not None:
            raise Invalid(
                f"a join has within={within!r}, which bounds how long rows are kept, and state_ttl={state_ttl!r}",
                expected="one of the two",
                help="leave out state_ttl",
                reason="BAD_PIPELINE",
            )
        expiry = Expiry(state_ttl, ttl_time)
        return self._joined(others, on, within, prefixes, event_time, how, uid, expiry, as_of=as_of)

    def _joined(
        self,
        others: Sequence[Stream],
        on: str | Sequence[str] | Mapping[str, str],
        within: str | tuple[str, str] | None,
        prefixes: Sequence[str | None],
        event_time: str | Sequence[str | None] | None,
        how: How,
        uid: str | None,
        expiry: Expiry,
        *,
        as_of: bool,
    ) -> Stream:
        """Join this stream with one stream after the other.

        Bounds in event time always relate to this stream's rows. So with several others its event time is looked up
        here: a join's result has the event times of both of its inputs.
        """
        times: list[str | None] = [None] * (len(others) + 1)
        if event_time is not None:
            times = _one_for_each("event_time", event_time, len(others) + 1)
        if len(others) > 1 and times[0] is None and (within is not None or as_of):
            times[0] = self.pipeline._event_time_of(self.name)
        joined = self
        for number, (other, prefix) in enumerate(zip(others, prefixes, strict=True), 1):
            pair = None
            if times[0] is not None or times[number] is not None:
                pair = (times[0], times[number])
            operator: Operator
            if as_of:
                operator = AsOfJoin(on, how, prefix, pair, expiry)
            elif within is None:
                operator = LatestJoin(on, how, prefix, expiry)
            else:
                operator = IntervalJoin(on, within, how, prefix, pair)
            # The last join emits the result, so it gets the uid itself.
            operator_uid = f"{uid}-{number}" if uid and number < len(others) else uid
            joined = joined.apply(operator, other, uid=operator_uid)
        return joined

    def gate(self, gate: Gate, *, name: str | None = None) -> Stream:
        """Judge these rows before they count, and return the stream of the rows that pass.

            good = orders.gate(Expectations("orders", on_failure="quarantine"))

        name: identifies the gate's verdicts and its quarantine. The default is made of the judged stream, the kind of
            gate and its rules, such as "orders-expectations-shop". Gates before and after it do not matter.
        """
        kind, identity_parts = getattr(gate, "kind", "gate"), getattr(gate, "identity_parts", ())
        gate_name = name or generated_name([self.pipeline._ungated(self.name), kind, *identity_parts])
        operator = gate.operator_in_front if isinstance(gate, Gate) else None
        judged = self
        if operator is not None:
            uid = generated_name([gate_name, operator.kind])
            others = [self.pipeline._stream_name(other) for other in gate.other_streams]  # type: ignore[arg-type]
            node = OperatorNode(uid, operator, (self.name, *others), job_of([self]), not name, for_gate=True)
            self.pipeline._stages.append(node)
            judged = Stream(self.pipeline, uid, into_job=self.into_job)
        self.pipeline._stages.append(GateNode(gate_name, gate, judged.name, self.into_job, not name))
        passed = Stream(self.pipeline, gate_name)
        second = gate.followed_by if isinstance(gate, Gate) else None
        if second is None:
            return passed
        second_name = generated_name([gate_name, "over-table"])
        self.pipeline._stages.append(GateNode(second_name, second, gate_name, generated=not name))
        return Stream(self.pipeline, second_name)

    def sink(
        self,
        name: str,
        sink: Sink,
        *,
        contract: Contract | None = None,
        refused: Refused = "abort",
        at_least_once: bool = False,
    ) -> Stream:
        """Publish these rows to `sink` with every completed checkpoint, and return this stream.

            clean.sink("orders", DeltaAppend("tables/orders"))

        name: identifies the sink in the ledger. It must not change as long as the pipeline lives.
        contract: the data contract of the target. A gate "<name>-contract" judges the rows by it. Its latency is
            promised, as by `pipeline.promise`, its owner is on the pages, and a Delta table that is created gets its
            descriptions as comments.
        refused: what to do with rows that the target would refuse, such as a null in a NOT NULL column. "abort" the
            checkpoint before anything is published, or send these rows to "quarantine", under the name
            "<name>-refused", and publish the others.
        at_least_once: accept a sink that may write rows more than once after a failure, such as a webhook. Without
            this, such a sink is refused.
        """
        stream = self.name
        if contract is not None:
            contract = _contract_of(name, contract, sink)
            stream = self.gate(contract, name=generated_name([name, "contract"])).name
            if isinstance(sink, Sink):
                sink = copy(sink)
                sink.described_by = contract.description
        if refused != "abort":
            judged, stream = stream, target_gate_name(name)
            gate = TargetRules(name, sink, refused)
            self.pipeline._stages.append(GateNode(stream, gate, judged, self.into_job))
        self.pipeline._sinks.append(SinkNode(name, sink, stream, at_least_once, self.into_job, contract))
        return self

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


def _contract_of(sink_name: str, contract: object, sink: object) -> Contract:
    """Return the contract of a sink, as its gate judges by it."""
    if not isinstance(contract, Contract):
        raise Invalid(
            f"sink {sink_name!r} has the contract {contract!r}",
            expected='a Contract, as in contract=Contract("contracts/orders.odcs.yaml")',
            help="from tidegate.gates import Contract",
            reason="BAD_PIPELINE",
        )
    return contract.with_unique_keys(sink.upserts) if isinstance(sink, Sink) and sink.upserts else contract


def _spark_keys(job: str, spark: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the Spark configuration of a job; raise Invalid unless all keys are Spark's."""
    if spark is None:
        return {}
    if not isinstance(spark, Mapping):
        raise _bad_spark(job, spark)
    unknown = sorted(str(key) for key in spark if not str(key).startswith("spark."))
    if unknown:
        raise _bad_spark(job, unknown)
    return spark


def _bad_spark(job: str, value: object) -> Invalid:
    return Invalid(
        f"job {job!r} has spark={value!r}",
        expected='a dict of Spark\'s own keys, such as {"spark.executor.memory": "8g"}',
        help="write each key as Spark's documentation does, beginning with spark.",
        reason="BAD_PIPELINE",
    )


def _one_for_each(parameter: str, values: str | Sequence[str | None] | None, count: int) -> list[str | None]:
    """Return one value for each of `count` streams. A single one is for all of them."""
    if values is None or isinstance(values, str):
        return [values] * count
    if not isinstance(values, list | tuple) or len(values) != count:
        raise Invalid(
            f"{parameter}={values!r}, in a join of {count} of them",
            expected=f"one text for all, or {count} texts, with None for a stream that needs none",
            help=f"list {parameter} for each stream, in the order of the streams",
            reason="BAD_PIPELINE",
        )
    return list(values)


def job_of(inputs: Sequence[Stream | str]) -> str | None:
    """Return the job that `.job(…)` names for these streams, or None if it names none."""
    streams = [stream for stream in inputs if isinstance(stream, Stream) and stream.into_job is not None]
    # Users may pass anything as a name, so it may not be hashable. The graph checks names later.
    jobs = list({repr(stream.into_job): stream.into_job for stream in streams}.values())
    if len(jobs) > 1:
        raise Invalid(
            f"a stage or operator cannot be in jobs {' and '.join(map(str, jobs))} at once, as its inputs name them",
            expected="one job",
            help="use .job(…) with one name",
            reason="BAD_PIPELINE",
        )
    return jobs[0] if jobs else None


class Pipeline:
    """A graph of sources, stages, operators, gates and sinks that commits as a whole, checkpoint by checkpoint.

        pipeline = Pipeline("orders", interval="1 min")
        orders = pipeline.source("orders", Files("landing/*.json", schema="id long, amount double"))

        @pipeline.stage(orders)
        def clean(orders):
            return orders.where("amount is not null")

        clean.sink("orders", DeltaAppend("tables/orders"))

    name: identifies the pipeline. Its ledger and its state are stored under it.
    finishes: end the pipeline once all of its sources, which must be bounded, have been read to their end. Event time
        ends with the last checkpoint, as with `stop --drain`.
    settings: settings such as `interval="1 min"`. They override tidegate.toml and the environment; `-D key=value`
        overrides them.
    """

    def __init__(self, name: str, *, finishes: bool = False, **settings: object) -> None:
        self.name = name
        self.finishes = finishes
        self.settings = settings
        caller = sys._getframe(1).f_globals
        self.declared_in = str(caller.get("__name__", "")), str(caller.get("__file__") or "")
        """The module and the file that declare the pipeline, so that another process can import it."""
        self._sources: list[SourceNode] = []
        self._stages: list[Node] = []
        self._sinks: list[SinkNode] = []
        self._on_suspended: list[OnSuspended] = []
        self._hooks: list[Hook] = []
        self._promises: list[tuple[str, float]] = []
        self._aligned: set[str] = set()
        self._set_by_jobs: dict[str, dict[str, object]] = {}

    def source(
        self,
        name: str,
        source: Source,
        *,
        event_time: str | None = None,
        watermark: float | str | None = None,
        idle_timeout: float | str | None = None,
        bounded: bool = False,
        max_ahead: float | str | None = None,
        max_per_checkpoint: Adaptive | None = None,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> Stream:
        """Read from a source, and return the stream of its rows.

            orders = pipeline.source("orders", Files("landing/*.json", schema="id long, at timestamp"), event_time="at")

        name: identifies the source. Its positions are recorded under this name.
        source: where to read from, such as `Files` or `Kafka`.
        event_time: the column with the time at which a row happened, for operators that use event time.
        watermark: how long to wait for late rows, such as "10 min": the watermark trails the newest row by this. The
            default is the setting `watermark`.
        idle_timeout: after how long without rows event time stops waiting for this source, such as "5 min" or "never".
            The default is the setting `idle_timeout`.
        bounded: promise that all input exists already. Once it has been read, the source no longer holds event time
            back, and event time ends for operators that have only bounded sources.
        max_ahead: how far this source's event time may be ahead of the other sources, such as "1 hour". While it is
            further ahead of a source that has input waiting, it is not read, so its rows do not pile up in the state of
            joins.
        max_per_checkpoint: `Adaptive()` reads as much per checkpoint as can be processed within the interval, up to the
            source's own limits.
        hold_for: with `on_new_column="hold"`, how long a checkpoint with new keys waits for a person, such as "3 days".
            None waits without limit.
        unanswered: the answer that counts after that: "reject" or "approve".
        """
        says_how_to_wait = (hold_for, unanswered) != ("1 day", "reject")
        self._sources.append(
            SourceNode(
                name,
                source,
                event_time,
                watermark,
                max_per_checkpoint,
                idle_timeout,
                bounded,
                max_ahead,
                says_how_to_wait,
            )
        )
        stream = Stream(self, name)
        if isinstance(source, Source) and source.schema_policy.on_new_column == "hold":
            gate = NewColumns(hold_for, unanswered)
            return stream.gate(gate, name=generated_name([name, "new-columns"]))
        return stream

    def stage(
        self, *inputs: Stream | str, outputs: Sequence[str] = (), name: str | None = None
    ) -> Callable[[Callable[..., Any]], Stream]:
        """Decorate a pure function that takes a DataFrame per input and returns a DataFrame.

            @pipeline.stage(orders, customers, outputs=["known", "unknown"])
            def split(orders, customers):
                return {
                    "known": orders.join(customers, "customer"),
                    "unknown": orders.join(customers, "customer", "anti"),
                }

            split["known"].sink("orders", DeltaAppend("tables/orders"))

        The function may run more than once for the same checkpoint, of which one result counts.

        inputs: the input streams, or their names, in the order of the function's parameters.
        outputs: names of several outputs. The function then returns a dict or a tuple of DataFrames, and each output is
            a stream, such as `split["known"]`.
        name: identifies the stage. The default is the function's name.
        """
        input_names = tuple(self._stream_name(stream) for stream in inputs)
        job = job_of(inputs)
        if isinstance(outputs, str):
            raise Invalid(
                f"a stage's outputs are the text {outputs!r}",
                expected="a list of names",
                help=f"write outputs=[{outputs!r}]",
                reason="BAD_PIPELINE",
            )

        def declare(function: Callable[..., Any]) -> Stream:
            stage_name = name or getattr(function, "__name__", "stage").replace("<lambda>", "")
            self._stages.append(StageNode(stage_name, function, input_names, tuple(outputs), job))
            return Stream(self, stage_name, tuple(outputs))

        return declare

    def sql(
        self, text: str, *, name: str, state_ttl: str | float | None = None, ttl_time: str = "processing"
    ) -> Stream:
        """Compile a SELECT over streams into stages and operators, and return its stream. Needs the extra `sql`.

            pipeline.sql("SELECT id, amount, country FROM orders WHERE amount > 0", name="good")
            pipeline.sql("SELECT country, sum(amount) AS spent FROM good GROUP BY country", name="totals")

        The language is Spark's, with Flink's table functions for windows:
        `TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR))`. It compiles to the stages and operators that
        you would declare by hand. The guide lists them. Anything else raises Invalid, with its line and column.

        text: one SELECT statement. It refers to streams by their names.
        name: the name of the returned stream. The stages and operators before it are called `name-…`.
        state_ttl, ttl_time: as for `aggregate`, for each operator that would otherwise keep rows forever.
        """
        from tidegate.pipeline.sql.compile import compile_sql

        declared = len(self._stages)
        try:
            return compile_sql(self, text, name, state_ttl, ttl_time)
        except Exception:
            del self._stages[declared:]
            raise

    @property
    def streams(self) -> list[str]:
        """The names of all streams declared so far."""
        names = [source.name for source in self._sources]
        for node in self._stages:
            names += node.produces
        return names

    def stream(self, name: str) -> Stream:
        """Return the stream with this name."""
        if name not in self.streams:
            raise Invalid(
                f"there is no stream {name!r}",
                expected=", ".join(self.streams) or "a stream that is declared before",
                help="use the name of one of them",
                reason="BAD_PIPELINE",
            )
        for node in self._stages:
            if node.name == name and isinstance(node, OperatorNode):
                return Stream(self, name, node.outputs)
        return Stream(self, name)

    def on_suspended(self, hook: OnSuspended) -> OnSuspended:
        """Call `hook` when failures or damage have suspended the pipeline, for example to page someone.

            @pipeline.on_suspended
            def page(suspension):
                requests.post(PAGER, json={"pipeline": suspension.pipeline, "why": suspension.why})

        It is also called when the pipeline is not suspended, but more runs in a row than are tolerated could not plan a
        checkpoint. The process that notices calls it at least once, so it may be called again. Exceptions that it
        raises are only logged.

        hook: a function of one argument, the Suspension. It is returned, so that this works as a decorator.
        """
        if not callable(hook):
            raise Invalid(
                f"on_suspended was given a {type(hook).__name__}",
                expected="a function of one argument, the Suspension",
                help="pass the function itself, without calling it",
                reason="BAD_PIPELINE",
            )
        self._on_suspended.append(hook)
        return hook

    def hook(
        self,
        name: str,
        *,
        on_trigger: Callable[[Triggering], Json | None] | None = None,
        on_prepare: Callable[[Preparing], object] | None = None,
        on_restore: Callable[[Json], object] | None = None,
        on_reset: Callable[[], object] | None = None,
        on_completed: Callable[[Settled], object] | None = None,
        on_aborted: Callable[[Settled], object] | None = None,
        of: Stream | None = None,
        timeout: str = "30 s",
        after_swap: RestoredAfterSwap = "last",
    ) -> None:
        """Let functions of your own take part in checkpoints.

            pipeline.hook("announce", on_completed=lambda settled: announce(settled.id, settled.versions))

        name: identifies the hook and its state.
        on_trigger: called when a checkpoint is planned. The dict that it returns is stored with the plan, as the hook's
            state. If the function fails, or does not return within `timeout`, nothing is planned. It may be called
            again, also for a checkpoint that is never completed.
        on_prepare: called in each job when its rows are staged, before its ack makes them count, for example to flush
            what stages have written elsewhere. If it fails or times out, the checkpoint is declined. Every attempt
            calls it, so it must be safe to call again.
        on_restore: called with the stored dict after a rollback to its checkpoint, before anything else is planned. It
            may be called more than once.
        on_reset: called in its place if the checkpoint has no state of this hook.
        on_completed: called when a checkpoint is completed and published to all of its tables. It is called at least
            once for each checkpoint that was planned with the hook, in order. If it fails or times out, it is called
            again at the end of the next checkpoint; nothing else waits for it.
        on_aborted: called in the same way when a checkpoint is aborted.
        of: the stream of an operator. `on_completed` and `on_aborted` then get the versions of that operator's states
            instead of the sinks'.
        timeout: how long a call may take.
        after_swap: which state `on_restore` gets after a backfill is swapped in. "last" is that of the checkpoint which
            the swap follows, where the sources continue. "origin" is that of the checkpoint from which the backfill
            began, for a hook that must start over from there.
        """
        callbacks: Callbacks = {
            "on_trigger": on_trigger,
            "on_prepare": on_prepare,
            "on_restore": on_restore,
            "on_reset": on_reset,
            "on_completed": on_completed,
            "on_aborted": on_aborted,
        }
        self._hooks.append(make_hook(name, timeout, callbacks, self._operator_of(name, of), after_swap))

    def promise(self, sinks: str | Sequence[str], *, fresh: str | float) -> None:
        """Promise that the tables of sinks are never older than this, and be told when one is.

            pipeline.promise("revenue", fresh="15 min")

        A table is as old as the last checkpoint that is published to it, counted from the moment at which that
        checkpoint's input was fixed. A checkpoint that finds nothing new keeps the promise, too. While the pipeline is
        suspended, paused or held, tables grow older. A promise changes nothing about checkpoints.

        sinks: the name of a sink, or a list of names.
        fresh: how old the table may be, such as "15 min". It must be longer than the setting `interval`.
        """
        names, seconds = checked_promise(sinks, fresh)
        self._promises += [(name, seconds) for name in names]

    def _contract_promises(self, place: Place | None) -> list[tuple[str, float]]:
        """Return what the contracts of sinks promise, unless the pipeline itself promises as much."""
        promised = []
        own = dict(self._promises)
        for node in self._sinks:
            seconds = node.contract.fresh_within(place) if node.contract is not None and place is not None else None
            if seconds is None:
                continue
            if own.get(node.name, 0) > seconds:
                raise Invalid(
                    f"sink {node.name!r} is promised to be fresh within {duration_text(own[node.name])}, and its "
                    f"contract says {duration_text(seconds)}",
                    expected="a promise that keeps the contract",
                    help="leave out the promise: the contract is one",
                    reason="BAD_PIPELINE",
                )
            if node.name not in own:
                promised.append((node.name, seconds))
        return promised

    def _operator_of(self, hook: str, stream: Stream | None) -> str:
        """Return the uid of the operator that emits the stream, or "" for no stream."""
        if stream is None:
            return ""
        for node in self._stages:
            if isinstance(node, OperatorNode) and stream.name in (node.name, *node.produces):
                return node.name
        raise Invalid(
            f"hook {hook!r} is for {stream.name!r}, which no operator emits",
            expected="the stream of an operator, such as an aggregate or a join",
            help="leave out `of`: the hook is then for the whole pipeline",
            reason="BAD_PIPELINE",
        )

    def graph(self, place: Place | None = None, mode: str | None = None) -> Graph:
        """Check the declarations and return the graph, or raise Invalid, which lists every problem.

        place: where relative paths of the declarations belong.
        mode: the effective value of the setting `mode`.
        """
        graph = build_graph(
            self.name,
            self._sources,
            self._stages,
            self._sinks,
            self.settings,
            place,
            mode,
            finishes=self.finishes,
            promised=[*self._promises, *self._contract_promises(place)],
        )
        return replace(
            graph,
            on_suspended=tuple(self._on_suspended),
            hooks=once_each(self._hooks),
            aligned=frozenset(self._aligned),
        )

    def _set_for_job(self, name: str, options: Mapping[str, object]) -> None:
        """Add a job's options to the settings. Several calls of `.job(…)` may set options, but not the same one."""
        if not options:
            return
        declared = self._set_by_jobs.setdefault(check_name("job", name), {})
        for option, value in options.items():
            if declared.setdefault(option, value) != value:
                raise Invalid(
                    f"job {name!r} is declared with {option}={declared[option]!r} and with {option}={value!r}",
                    expected="one value",
                    help="set it in one place: the other calls of .job(…) need only the name",
                    reason="BAD_PIPELINE",
                )
        jobs = self.settings.get("jobs")
        if not isinstance(jobs, Mapping):
            jobs = {}
        job_settings = jobs.get(name)
        if not isinstance(job_settings, Mapping):
            job_settings = {}
        self.settings["jobs"] = {**jobs, name: {**job_settings, **declared}}

    def _completing_columns_of(self, stream: str) -> frozenset[str]:
        """Return `OutputSpec.complete_per_checkpoint_by` of the operator that emits a stream.

        Gates in between do not matter, unless they quarantine: rows that are released arrive in a later checkpoint.
        """
        nodes = {node.name: node for node in self._stages}
        node = nodes.get(stream)
        while isinstance(node, GateNode) and not getattr(node.gate, "quarantines", True):
            node = nodes.get(node.input)
        if not isinstance(node, OperatorNode):
            return frozenset()
        return node.spec.output.complete_per_checkpoint_by

    def _event_time_of(self, stream: str) -> str | None:
        """Return the column of event time that a stream's sources declare, if they agree on one."""
        inputs = {name: node.inputs for node in self._stages for name in node.produces}
        upstream: set[str] = set()
        pending = [stream]
        while pending:
            name = pending.pop()
            if name not in upstream:
                upstream.add(name)
                pending += inputs.get(name, ())
        columns = {source.event_time for source in self._sources if source.name in upstream and source.event_time}
        return columns.pop() if len(columns) == 1 else None

    def _ungated(self, stream: str) -> str:
        """Return the stream before all gates that it has passed."""
        gated = {}
        for node in reversed(self._stages):
            if isinstance(node, GateNode) or (isinstance(node, OperatorNode) and node.for_gate):
                gated[node.name] = node.inputs[0]
        while stream in gated:
            # A gate is passed once. Names that are used twice, which the graph refuses, would make a loop.
            stream = gated.pop(stream)
        return stream

    def _stream_name(self, stream: Stream | str) -> str:
        if isinstance(stream, str):
            return stream
        if not isinstance(stream, Stream):
            raise Invalid(
                f"a stage's input is a {type(stream).__name__}",
                expected="a stream (what pipeline.source or another stage returned) or its name",
                help="pass the stream, not the source or the function",
                reason="BAD_PIPELINE",
            )
        if stream.pipeline is not self:
            raise Invalid(
                f"stream {stream.name!r} belongs to pipeline {stream.pipeline.name!r}, not to {self.name!r}",
                expected=f"a stream of pipeline {self.name!r}",
                help="write it to a table there and read that table here",
                reason="BAD_PIPELINE",
            )
        return stream.name

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
