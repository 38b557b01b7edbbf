"""The declarations that a user writes: Pipeline, its sources, stages and hooks. Nothing here runs or reads anything."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tidegate.errors import Invalid
from tidegate.gates.base import Gate
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
from tidegate.pipeline.selection import refuse_unfit, selection
from tidegate.pipeline.union import union
from tidegate.records.codec import sha256
from tidegate.records.names import check_name, listed
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sinks.base import Sink
from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Source

__all__ = ["Pipeline", "Stream", "generated_name", "job_of"]


LETTERS, DIGITS = 63, 8
"""The longest name, and the length of the hash that ends a name when words alone are not enough."""


def generated_name(words: Iterable[object]) -> str:
    """Join the words into one name; add a hash if they are too long or have characters that a name may not have."""
    words_as_text = [str(word) for word in words]
    text = "-".join(filter(None, (re.sub(r"[^a-z0-9_]+", "-", word.lower()).strip("-_") for word in words_as_text)))
    plain = all(re.fullmatch(r"[a-z0-9_. -]+", word) for word in words_as_text)
    if plain and 0 < len(text) <= LETTERS:
        return text
    return f"{text[: LETTERS - DIGITS - 1].strip('-_')}-{sha256(msgspec.json.encode(words_as_text))[:DIGITS]}".lstrip(
        "-"
    )


class Stream:
    """Rows between two operators."""

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
        """Run what follows in another job: a task of its own, with its own Spark job and ack.

            slow = clean.job("scoring").process(…)      # a channel carries `clean`: staged once, read by all

        Later operators stay in that job. Jobs run in parallel. aligned: every checkpoint waits for it, even with
        `unaligned = true`.

        spark: settings of Spark for this job only, such as {"spark.executor.memory": "8g"}; they override `spark.conf`.
            With `spark.mode = "submit"` any, otherwise only those of a session (`spark.sql.…`).
        pool, pool_slots, queue, executor, priority_weight: of its task in Airflow, as for any operator there.

        All of these are settings, `jobs.scoring.spark.executor.memory` or `jobs.scoring.pool`, and do not belong to the
        code of the pipeline: changing them changes no state and no checkpoint.
        """
        self.pipeline._aligned |= {name} if aligned else set()
        airflow = {
            "pool": pool,
            "pool_slots": pool_slots,
            "queue": queue,
            "executor": executor,
            "priority_weight": priority_weight,
        }
        own = {option: value for option, value in airflow.items() if value is not None}
        self.pipeline._set_for_job(name, {**own, **_spark_keys(name, spark)})
        return Stream(self.pipeline, self.name, self._outputs, name)

    def __getitem__(self, output: str) -> Stream:
        """One output of a stage that was declared with several."""
        if output not in self._outputs:
            maker = next((stage for stage in self.pipeline._stages if stage.name == self.name), None)
            kind, how = "stage", "@pipeline.stage(…, outputs=[…])"
            if isinstance(maker, OperatorNode):
                kind, how = maker.operator.kind, maker.spec.output.possible_others.get(output, "")
            raise Invalid(
                f"{kind} {self.name!r} has no output {output!r}",
                expected=", ".join(self._outputs) or (f"one declared with {how}" if how else "the stream itself"),
                help=f"declare it: {how}" if how else "take one that it has",
                reason="BAD_PIPELINE",
            )
        return Stream(self.pipeline, f"{self.name}.{output}", (), self.into_job)

    def apply(self, operator: Operator, *others: Stream, uid: str | None = None) -> Stream:
        """Apply an operator to this stream, and to `others` if it takes several.

        uid: identifies its state permanently. By default it is made of the operator's kind, its input streams and its
        key, such as "aggregate-orders-customer"; its place in the code does not matter. Choose a uid yourself if the
        inputs or the key may change one day. Two operators that would get the same default uid each need their own.
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
        """One row per key with running totals: `aggregate(by="customer", spent="sum(amount)", orders="count(*)")`.

        Each checkpoint emits the rows of the keys that changed, to be upserted. by=[]: one row, totals over all rows.

        state_ttl: how long after its last change a key's totals are forgotten, such as "30 days"; they start from zero
        if the key comes again. ttl_time: measured by the clock ("processing") or by the watermark ("event").
        """
        expiry = Expiry(state_ttl, ttl_time)
        return self.apply(Aggregate([by] if isinstance(by, str) else by, functions, expiry), uid=uid)

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
        """Decorate a function that is called for each key with new rows, or with a timer that is due.

            @orders.process(by="customer", state="spent double, seen array<long>", output="customer long, alert string")
            def alerts(key, rows, state, timers):
                ...                          # rows: an Arrow table; state.spent, state.seen; timers.event(at)
                yield {"customer": key["customer"], "alert": "…"}

        output, state: schemas in DDL. Lists and maps start empty, all else as None; state.clear() forgets the key.
            The function may be called again for one checkpoint; one call counts.
        other: a second stream with the same key columns: the function is called with its rows, too, as in
            `def alerts(key, orders, payments, state, timers)`.
        lookup: a lookup table (`broadcast`): the function gets all of it, as an Arrow table, as its last argument. A
            change of the table calls nobody.
        outputs: more streams, each with its schema: {"big": "customer long, amount double"}. A row for one is yielded
            with its name, `yield "big", {"customer": …}`, and the stream is `alerts["big"]`.
        maps: maps of any size, {"bought": MapState(by="product", state="n long")}: `state.bought[row["product"]].n`.
            A call has the entries that its own rows name, and only these are read.
        lists: lists of any size, {"visits": ListState("page string, at timestamp")}: `state.visits.append({"page": …})`
            writes the one entry, `for visit in state.visits` reads entry by entry, `state.visits.clear()` forgets all.
        order_by: columns that a key's rows are sorted by; by default event time.
        in_order: rows wait for the watermark and arrive in order of event time, one moment at a time, with timers in
            between; the result then does not depend on how the input is split into checkpoints. Late rows go to the
            output "late". event_time: as for `window`; of two streams a pair, if their columns differ.
        state_ttl, ttl_time: when a key's state is forgotten, as for `aggregate`. Its timers stay. A mapping gives
            fields a time of their own, {"last": "1 day", "n": "90 days"}; those that it does not name stay.

        At the end of event time (`stop --drain`) each timer fires once more; a timer set by then never fires.
        """

        def declare(function: Callable[..., Any]) -> Stream:
            name = uid or getattr(function, "__name__", "process").replace("<lambda>", "process")
            keys = [by] if isinstance(by, str) else by
            more = [stream for stream in (other, lookup) if stream is not None]
            order = [order_by] if isinstance(order_by, str) else order_by
            own = state_ttl if isinstance(state_ttl, Mapping) else {}
            operator = Process(
                keys,
                function,
                output,
                state,
                order,
                in_order=in_order,
                event_time=event_time,
                expiry=Expiry(None if isinstance(state_ttl, Mapping) else state_ttl, ttl_time),
                outputs=outputs or {},
                inputs=1 if other is None else 2,
                looks_up=lookup is not None,
                maps=maps or {},
                lists=lists or {},
                fields={name: Expiry(after, ttl_time) for name, after in own.items()},
            )
            return self.apply(operator, *more, uid=name)

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
        """Aggregate per window of event time, and per key: window_start, window_end, the keys, the results.

            orders.window(tumbling="1 hour", by="country", revenue="sum(amount)")

        tumbling, hopping, session: one of "1 hour"; ("1 hour", "10 min"), size and step; "30 min", the longest break.
        count: in their place: so many rows of a key, in the order of event time; late rows go to the output "late".
        time: "processing" goes by when the row's checkpoint was planned, in place of event time.
        event_time: the column with the time, if it is not the one that the sources declare.
        emit: "close" emits each window once, when it is complete; "update" on every change, to be upserted.
        late: "drop" only counts rows that come too late, "side" emits them as the stream `window["late"]`.
        allowed_lateness: how long after the watermark has passed a window still takes rows; it is then emitted again.
        state_ttl, ttl_time: with `count`, when a window is forgotten that gets no more rows, as for `aggregate`.
        """
        kinds = {"tumbling": tumbling, "hopping": hopping, "session": session}
        if count is not None:
            others = {**kinds, "emit": emit, "late": late, "allowed_lateness": allowed_lateness, "time": time}
            plain = {"emit": "close", "late": "drop", "allowed_lateness": 0, "time": "event"}
            said = [name for name, value in others.items() if value != plain.get(name)]
            if said:
                raise Invalid(
                    f"a window of {count!r} rows has {', '.join(said)}, too",
                    expected="count, by, event_time and results",
                    help=f"leave out {', '.join(said)}: its rows come in order, and it is given once, when it is full",
                    reason="BAD_PIPELINE",
                )
            expiry = Expiry(state_ttl, ttl_time)
            return self.apply(CountWindow(listed(by), functions, count, event_time, expiry), uid=uid)
        if state_ttl is not None:
            raise Invalid(
                f"a window of time has state_ttl={state_ttl!r}, too",
                expected="state_ttl for windows of a number of rows, which may never be full",
                help="leave it out: a window is forgotten once it is over",
                reason="BAD_PIPELINE",
            )
        window = Window(
            [by] if isinstance(by, str) else by,
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
        """Add to each row what is known of its key's rows up to it, in the order of event time.

            orders.over(by="customer", spent="sum(amount)", before="lag(amount)", nth="row_number()")

        A row waits until the watermark has passed it, and is output once. Late rows go to the output "late".

        rows: aggregate only that many rows, this one included: `rows=10` the last ten. By default all so far.
        functions: sum, count, count_if, avg, min, max; lag(x) or lag(x, 3), the value in an earlier row; row_number().
        state_ttl, ttl_time: when a key's rows are forgotten, as for `aggregate`: sums and numbers begin anew.
        """
        expiry = Expiry(state_ttl, ttl_time)
        return self.apply(OverRows(listed(by), functions, rows, event_time, expiry), uid=uid)

    def every(self, checkpoints: int, *, uid: str | None = None) -> Stream:
        """Give what has changed in this stream every so many checkpoints, in place of each.

            live = orders.window(tumbling="1 day", revenue="sum(amount)", emit="update").every(10)

        What has come and gone in between is not given at all. At the end of event time all is given that waits.
        """
        return self.apply(EmitEvery(checkpoints), uid=uid)

    def select(self, *columns: str, where: str | None = None, name: str | None = None) -> Stream:
        """Compute columns of each row, in SQL: `orders.select("id", "amount * 2 AS twice", where="amount > 0")`.

        columns: by default all, as "*" also says; each is computed of one row. where: a condition on this stream's
            columns; rows for which it is not true are left out.
        name: identifies the stream, of which the default uids of operators behind it are made; by default this stream's
            name with "-select" behind it, whatever is selected.
        """
        return self._selected("select", columns, where, name)

    def where(self, condition: str, *, name: str | None = None) -> Stream:
        """Keep the rows for which a condition in SQL is true: `orders.where("amount > 0")`. name: as for `select`."""
        return self._selected("where", (), condition, name)

    def _selected(self, kind: str, columns: Sequence[str], where: str | None, name: str | None) -> Stream:
        refuse_unfit(f"{kind} of {self.name!r}", [*columns, *([] if where is None and kind == "select" else [where])])
        chosen = name or generated_name([self.pipeline._ungated(self.name), kind])
        return self.pipeline.stage(self, name=chosen)(selection(where, columns or ["*"]))

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of this stream and of others, which have the same columns."""
        if not others:
            raise Invalid(
                f"a union of {self.name!r} with nothing",
                expected="at least one more stream, as in orders.union(returns)",
                help="name the others, or leave it out",
                reason="BAD_PIPELINE",
            )
        inputs = [self.name, *(self.pipeline._stream_name(other) for other in others)]
        chosen = name or generated_name(["union", *map(self.pipeline._ungated, inputs)])
        return self.pipeline.stage(self, *others, name=chosen)(union)

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
        """Keep the first row of each key: `deduplicate(by="order_id", within="1 day")`.

        Without `within` that is one of the first checkpoint that has the key: the earliest in event time, if there is
        any; otherwise any one. Of copies nothing depends on that. To choose among rows that differ: `top_n(1, …)`.

        within: rows less than this apart in event time are duplicates, and late rows go to the output "late"; without
        it, keys are remembered permanently. event_time: the column with the time, if its source does not name one.
        state_ttl: without `within`, how long after its first row a key is remembered. ttl_time: as for `aggregate`.
        """
        keys, expiry = [by] if isinstance(by, str) else by, Expiry(state_ttl, ttl_time)
        return self.apply(Deduplicate(keys, within, event_time, expiry), uid=uid)

    def latest(
        self,
        *,
        by: str | Sequence[str],
        order_by: str | Sequence[str],
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep the row of each key that is the greatest in `order_by`, to be upserted.

        state_ttl: how long after its last change a key is forgotten. ttl_time: as for `aggregate`.
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
        """Keep the first `n` rows of each key, numbered in `rank`: `top_n(3, by="country", order_by="amount desc")`.

        To be upserted by the key and `rank`. Of a window's results, by `window_start` or `window_end` (and more), they
        are final, and nothing is kept: all rows of a closed window come in one checkpoint.

        rank: how rows that are equal in `order_by` are numbered: "row_number" 1, 2, 3, 4 (told apart by all that they
            hold), "rank" 1, 2, 2, 4, "dense_rank" 1, 2, 2, 3. With the last two there may be more than `n` rows.
        tumbling: the first rows of each window, "1 hour": given once, with window_start and window_end, when it is
            complete, and then forgotten. Late rows go to the output "late". event_time: as for `window`.
        state_ttl: how long after it came a row is forgotten. ttl_time: as for `aggregate`.
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
                expected='tumbling="1 hour", if it is to go by event time',
                help="leave out event_time, or say tumbling",
                reason="BAD_PIPELINE",
            )
        if tumbling is not None:
            return self.apply(WindowTopN(n, tumbling, listed(by), listed(order_by), rank, event_time), uid=uid)
        whole = self.pipeline._complete_per_checkpoint_by(self.name)
        at_once = not whole.isdisjoint(listed(by))
        return self.apply(TopN(n, by, order_by, rank, at_once=at_once, expiry=Expiry(state_ttl, ttl_time)), uid=uid)

    def broadcast(
        self,
        *,
        by: str | Sequence[str],
        order_by: str | Sequence[str],
        state_ttl: str | float | None = None,
        ttl_time: str = "processing",
        uid: str | None = None,
    ) -> Stream:
        """Keep a small lookup table for stages: the newest row of each key so far, complete in every checkpoint.

            rules = changes.broadcast(by="country", order_by="changed_at")

            @pipeline.stage(orders, rules)
            def taxed(orders, rules):
                return orders.join(rules, "country", "left")

        Spark sends the whole table to every worker, so nothing else is shuffled for it. A checkpoint's rows see the
        rules of the same checkpoint; results stay as they are when a rule changes later.
        by, order_by, state_ttl, ttl_time: as for `latest`.
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
        """Join streams by key; or this stream and a Delta table, `table="tables/customers"`.

            orders.join(payments, on="id")                                  # all pairs that there are, forever
            orders.join(payments, on="id", within=("-5 min", "1 hour"))     # pairs that are near in time
            orders.join(rates, on="currency", as_of=True)                   # the rate that held when the order was made
            orders.join(payments, parcels, on="id")                         # three of a kind: one join after the other

        on: columns that both have; or, where the names differ, {"seller": "id"}: this stream's name, then the other's.
            A key is output once, under this stream's name.
        table: its path. Every attempt at a checkpoint reads the version that was current when it was planned.
        within: how far apart in event time, inclusive: "1 hour" before or after, or ("-10 min", "1 hour") from how much
            earlier to how much later the other's row may be. Without it all streams are kept permanently. If they only
            add rows, so do inner and semi joins; otherwise the output is the join of all rows so far, whose rows
            replace each other: to be upserted.
        as_of: the other stream brings versions: each row meets the newest one of its key that is not newer in event
            time than the row. It waits until the watermark has passed it, and is output once.
        how: "inner", "left" (also this stream's rows without a partner, with `within` once none can come any more),
            "right", "full", "semi" (this stream's rows that have a partner, and no more), "anti" (those without one).
        prefix: put before the other's column names that this stream has, too; for several streams one for each.
        event_time: the column with the time, or one for each stream, this one first, if the sources do not name it.
        state_ttl: without `within`, how long after it came a row is forgotten, with as_of a version. ttl_time: as for
            `aggregate`.
        """
        if bool(others) == (table is not None) or (
            table is not None and (within, event_time, as_of) != (None, None, False)
        ):
            raise Invalid(
                "a join is with other streams or with a table, and a table has no within, no as_of and no event_time",
                expected='orders.join(payments, on="id", …) or orders.join(table="tables/customers", on="id", …)',
                help="name one of the two",
                reason="BAD_PIPELINE",
            )
        if as_of and within is not None:
            raise Invalid(
                "a join as of event time looks for one version, and has no bounds: it has as_of=True and "
                f"within={within!r}",
                expected="one of the two",
                help="leave out within; a stage after it may drop rows whose version is too old",
                reason="BAD_PIPELINE",
            )
        prefixes = _one_for_each("prefix", prefix, len(others) or 1)
        if table is not None:
            return self.apply(TableJoin(table, on, how, prefixes[0]), uid=uid)
        if len(others) > 1 and how in ("right", "full"):
            raise Invalid(
                f"a join of {len(others) + 1} streams has how={how!r}, and which rows are then without a partner "
                "depends on the order",
                expected='"inner", "left", "semi" or "anti" for several streams',
                help=f'join two of them, and the result with the next: a.join(b, …, how="{how}").join(c, …)',
                reason="BAD_PIPELINE",
            )
        if state_ttl is not None and within is not None:
            raise Invalid(
                f"a join has within={within!r}, which says how long rows are kept, and state_ttl={state_ttl!r}",
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
        """Join this stream with one after the other. Bounds in time are seen from this stream's rows."""
        many = len(others) > 1
        times: list[str | None] = [None] * (len(others) + 1)
        if event_time is not None:
            times = _one_for_each("event_time", event_time, len(others) + 1)
        if many and times[0] is None and (within is not None or as_of):
            times[0] = self.pipeline._event_time_of(self.name)
        joined = self
        for place, (other, prefix) in enumerate(zip(others, prefixes, strict=True), 1):
            pair = (times[0], times[place])
            chosen = None if pair == (None, None) else pair
            operator: Operator
            if as_of:
                operator = AsOfJoin(on, how, prefix, chosen, expiry)
            elif within is None:
                operator = LatestJoin(on, how, prefix, expiry)
            else:
                operator = IntervalJoin(on, within, how, prefix, chosen)
            name = f"{uid}-{place}" if uid and place < len(others) else uid
            joined = joined.apply(operator, other, uid=name)
        return joined

    def gate(self, gate: Gate, *, name: str | None = None) -> Stream:
        """Judge these rows before they count. Returns the stream of the rows that pass.

        name: identifies its verdicts and its quarantine; by default made of the judged stream, the kind of gate and
        its rules, such as "orders-expectations-shop". Gates before and after it do not matter.
        """
        kind, identity_parts = getattr(gate, "kind", "gate"), getattr(gate, "identity_parts", ())
        gate_name = name or generated_name([self.pipeline._ungated(self.name), kind, *identity_parts])
        self.pipeline._stages.append(GateNode(gate_name, gate, self.name, self.into_job, not name))
        return Stream(self.pipeline, gate_name)

    def sink(self, name: str, sink: Sink, *, at_least_once: bool = False) -> Stream:
        """Publish these rows to `sink` with every completed checkpoint. Returns the stream itself."""
        self.pipeline._sinks.append(SinkNode(name, sink, self.name, at_least_once, self.into_job))
        return self

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


def _spark_keys(job: str, spark: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return a job's settings of Spark, if all of them are called like Spark's keys."""
    if spark is None:
        return {}
    wrong = [key for key in spark if not str(key).startswith("spark.")] if isinstance(spark, Mapping) else [spark]
    if wrong:
        raise Invalid(
            f"job {job!r} has spark={spark if not isinstance(spark, Mapping) else sorted(map(str, wrong))!r}",
            expected='a dict of Spark\'s own keys, such as {"spark.executor.memory": "8g"}',
            help="write each key as Spark's documentation does, beginning with spark.",
            reason="BAD_PIPELINE",
        )
    return spark


def _one_for_each(parameter: str, given: str | Sequence[str | None] | None, count: int) -> list[str | None]:
    """Return one value for each of `count` streams. A single one is for all of them."""
    if given is None or isinstance(given, str):
        return [given] * count
    if not isinstance(given, list | tuple) or len(given) != count:
        raise Invalid(
            f"{parameter}={given!r}, in a join of {count} of them",
            expected=f"one text, or {count}, None where nothing is to be said",
            help=f"say {parameter} for each stream, in their order",
            reason="BAD_PIPELINE",
        )
    return list(given)


def job_of(inputs: Sequence[Stream | str]) -> str | None:
    """Return the job that `.job(…)` names for these streams; None if it names none."""
    streams = [stream for stream in inputs if isinstance(stream, Stream) and stream.into_job is not None]
    jobs = list({repr(stream.into_job): stream.into_job for stream in streams}.values())
    if len(jobs) > 1:
        raise Invalid(
            f"what takes these streams cannot be in jobs {' and '.join(map(str, jobs))} at once",
            expected="one job",
            help="say .job(…) with one name",
            reason="BAD_PIPELINE",
        )
    return jobs[0] if jobs else None


class Pipeline:
    """A graph of sources, stages and sinks that counts together, checkpoint by checkpoint.

        pipeline = Pipeline("orders", interval="1 min")
        orders = pipeline.source("orders", Files("landing/*.json", schema="id long, amount double"))

        @pipeline.stage(orders)
        def clean(orders):
            return orders.where("amount is not null")

        clean.sink("orders", DeltaAppend("tables/orders"))

    Settings given here override tidegate.toml and the environment; `-D key=value` overrides these.
    finishes: it ends by itself once all of its sources, which must be bounded, have been read to their end: event time
        ends with that checkpoint, as with `stop --drain`, and no other is made.
    """

    def __init__(self, name: str, *, finishes: bool = False, **settings: object) -> None:
        self.name = name
        self.finishes = finishes
        self.settings = settings
        caller = sys._getframe(1).f_globals
        self.declared_in = str(caller.get("__name__", "")), str(caller.get("__file__") or "")
        """The module and the file that declare it, so that another process can import it."""
        self._sources: list[SourceNode] = []
        self._stages: list[Node] = []
        self._sinks: list[SinkNode] = []
        self._on_suspended: list[OnSuspended] = []
        self._hooks: list[Hook] = []
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
    ) -> Stream:
        """Read from `source` under this name. The name is its identity: positions are recorded under it.

        event_time: the column that says when a row happened, for operators that use event time.
        watermark: how much later than the newest row a row may come, such as "10 min"; by default the setting
            `watermark`.
        idle_timeout: after how long without rows event time does not wait for it any more, such as "5 min" or "never";
            by default the setting `idle_timeout`.
        bounded: its input is all there, and there will be no more: once nothing of it is left to be read, it does not
            hold event time back, and ends it for what takes rows of bounded sources only.
        max_ahead: how far its event time may be ahead of the other sources, such as "1 hour": while one that is further
            behind has input, this one is not read, so that its rows need not wait in the state of joins.
        max_per_checkpoint: Adaptive() takes as much as fits into the interval, within the source's own bounds.
        """
        self._sources.append(
            SourceNode(name, source, event_time, watermark, max_per_checkpoint, idle_timeout, bounded, max_ahead)
        )
        return Stream(self, name)

    def stage(
        self, *inputs: Stream | str, outputs: Sequence[str] = (), name: str | None = None
    ) -> Callable[[Callable[..., Any]], Stream]:
        """Decorate a pure function: DataFrames in (one per input, in order), a DataFrame out.

        With `outputs`, it returns a dict or tuple of DataFrames, and the streams are `stage["output"]`.
        It may run more than once for one checkpoint; only one run's result counts.
        """
        names = tuple(self._stream_name(stream) for stream in inputs)
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
            self._stages.append(StageNode(stage_name, function, names, tuple(outputs), job))
            return Stream(self, stage_name, tuple(outputs))

        return declare

    def sql(
        self, text: str, *, name: str, state_ttl: str | float | None = None, ttl_time: str = "processing"
    ) -> Stream:
        """Declare what a SELECT over streams says; return its stream. It needs the extra `sql`.

            pipeline.sql("SELECT id, amount FROM orders WHERE amount > 0", name="good")
            pipeline.sql("SELECT country, sum(amount) AS spent FROM good GROUP BY country", name="totals")

        It becomes the stages and operators that one would declare by hand, called `name` and `name-…`; what has no
        counterpart is refused, with its line and column. The language is Spark's, windows are Flink's table functions:
        TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR)). The guide lists what maps to what.

        state_ttl, ttl_time: of each operator in it that would keep rows permanently, as for `aggregate`.
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
        """The names of all streams that are declared so far."""
        return [*(source.name for source in self._sources), *(name for each in self._stages for name in each.produces)]

    def stream(self, name: str) -> Stream:
        """Return the stream of this name."""
        if name not in self.streams:
            raise Invalid(
                f"there is no stream {name!r}",
                expected=", ".join(self.streams) or "a stream that is declared before",
                help="name one of them",
                reason="BAD_PIPELINE",
            )
        node = next((each for each in self._stages if each.name == name), None)
        outputs = node.outputs if isinstance(node, OperatorNode) else ()
        return Stream(self, name, outputs)

    def on_suspended(self, hook: OnSuspended) -> OnSuspended:
        """Call `hook` with a Suspension when failures or damage have suspended the pipeline: to page somebody.
        Also when it is not suspended, but more runs in a row than are tolerated could not plan a checkpoint.

        It is called at least once, by the process that found out, so it may be called again. Its exceptions are
        only logged.
        Returns the hook, so that it can be used as a decorator.
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
        """Let your own code take part in checkpoints. The name identifies its state.

        on_trigger: called when a checkpoint is planned; the dict that it returns is stored with the plan. If it fails,
            or does not return within `timeout`, nothing is planned. It may be called again, also for a checkpoint that
            is never completed.
        on_prepare: called in each job when its rows are computed and staged, before its ack makes them count: to flush
            what stages have written elsewhere. If it fails, or does not return in time, the checkpoint is declined.
            Each attempt calls it, so it must be safe to call again.
        on_restore: called with that dict after a rollback to that checkpoint, before anything else is planned.
        on_reset: called instead if that checkpoint has no state of this hook. Both may be called more than once.
        on_completed: called when a checkpoint is completed and on all its tables.
        on_aborted: called when a checkpoint is aborted. Both are called at least once for each checkpoint that was
            planned with the hook, in the order of the checkpoints. If one fails, or does not return in time, it is
            called again at the end of the next checkpoint; nothing else waits for it.
        of: the stream of an operator, if these two are about that operator: they are told the versions of its states.
        after_swap: the dict that `on_restore` gets after a backfill is swapped in. "last": that of the checkpoint that
            the swap follows, since positions stand there. "origin": that of the one from which the backfill began, for
            a hook that is to begin there again, too.
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

    def _operator_of(self, hook: str, stream: Stream | None) -> str:
        """Return the uid of the operator that gives the stream; empty for no stream."""
        if stream is None:
            return ""
        operators = {stage.name for stage in self._stages if isinstance(stage, OperatorNode)}
        uid = next((uid for uid in operators if stream.name == uid or stream.name.startswith(f"{uid}.")), None)
        if uid is None:
            raise Invalid(
                f"hook {hook!r} is for {stream.name!r}, which no operator gives",
                expected="the stream of an operator, such as an aggregate or a join",
                help="leave out `of`: the hook is then for the whole pipeline",
                reason="BAD_PIPELINE",
            )
        return uid

    def graph(self, place: Place | None = None, mode: str | None = None) -> Graph:
        """Return the checked graph; Invalid lists every problem at once. mode: the setting's effective value."""
        parts = (self._sources, self._stages, self._sinks)
        graph = build_graph(self.name, *parts, self.settings, place, mode, finishes=self.finishes)
        hooks, aligned = once_each(self._hooks), frozenset(self._aligned)
        return replace(graph, on_suspended=tuple(self._on_suspended), hooks=hooks, aligned=aligned)

    def _set_for_job(self, name: str, options: Mapping[str, object]) -> None:
        """Make a job's own options settings. Several calls of `.job(…)` may each say some, but not the same twice."""
        if not options:
            return
        said = self._set_by_jobs.setdefault(check_name("job", name), {})
        for option, value in options.items():
            if said.setdefault(option, value) != value:
                raise Invalid(
                    f"job {name!r} is declared with {option}={said[option]!r} and with {option}={value!r}",
                    expected="one value",
                    help="say it in one place: the other calls of .job(…) need only the name",
                    reason="BAD_PIPELINE",
                )
        given = self.settings.get("jobs")
        jobs = given if isinstance(given, Mapping) else {}
        before = jobs.get(name)
        self.settings["jobs"] = {**jobs, name: {**(before if isinstance(before, Mapping) else {}), **said}}

    def _complete_per_checkpoint_by(self, stream: str) -> frozenset[str]:
        """Return `OutputSpec.complete_per_checkpoint_by` of the operator that makes a stream. A gate lets rows pass in
        their checkpoint, or never, unless it quarantines them: then they may be released later."""
        makers = {stage.name: stage for stage in self._stages}
        maker = makers.get(stream)
        while isinstance(maker, GateNode) and not getattr(maker.gate, "quarantines", True):
            maker = makers.get(maker.input)
        return maker.spec.output.complete_per_checkpoint_by if isinstance(maker, OperatorNode) else frozenset()

    def _event_time_of(self, stream: str) -> str | None:
        """Return the column of event time that a stream's sources declare, if they agree on one."""
        makers = {name: stage for stage in self._stages for name in stage.produces}
        columns, seen, waiting = set(), set[str](), [stream]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += makers[name].inputs if name in makers else ()
            columns |= {source.event_time for source in self._sources if source.name == name and source.event_time}
        return columns.pop() if len(columns) == 1 else None

    def _ungated(self, stream: str) -> str:
        """Return the stream before all gates that it has passed."""
        passed = {each.name: each.input for each in reversed(self._stages) if isinstance(each, GateNode)}
        while stream in passed:
            stream = passed.pop(stream)
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
