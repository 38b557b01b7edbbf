"""Counts Spark's work for each step of a job. The overhead is microseconds per request.

    with metered(spark) as meter:
        meter.enter(0)          # from now on, work counts for step 0
        ...
        meter.enter(None)       # and now for no step
        meter.collect_work()       # {0: SparkWork(queries=3, ...), None: SparkWork(queries=0, ...)}

The figures depend on how Spark is reached:

    Connect         the requests to the server and their times, from pyspark's client
      with our own  also Spark's jobs, stages, tasks and their times: the server counts them (SparkWork.java) by
      server        operation, and is asked once, at the end
    local, submit   the same from the JVM of this process, by a job tag of the step. Analyses are unknown, because each
                    step of a frame is analysed as it is built. Requests of other threads count for no step

An incompatible pyspark leaves figures unknown, and never causes a failure.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tidegate import seams
from tidegate.records.records import SparkWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkMeter", "Steps", "Unmetered", "metered"]

Steps = Mapping[int | None, SparkWork]
"""Spark's work by step; None for work outside of all steps."""


class SparkMeter(Protocol):
    """Counts what Spark does, by the step that is open."""

    def enter(self, step: int | None) -> None:
        """Count this thread's further requests for this step, or for none."""

    def collect_work(self) -> Steps:
        """Return Spark's work so far, once. A missing step had none; {}: nothing is known."""


class Unmetered:
    """For a Spark without figures."""

    def enter(self, step: int | None) -> None: ...

    def collect_work(self) -> Steps:
        return {}


@contextlib.contextmanager
def metered(spark: SparkSession | None) -> Iterator[SparkMeter]:
    """Count what this session does in the block."""
    with contextlib.ExitStack() as resources:
        meter: SparkMeter = Unmetered()
        with contextlib.suppress(Exception):
            is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
            if is_remote:
                meter = resources.enter_context(_client_metered(spark))
            elif spark is not None:
                meter = resources.enter_context(_jvm_metered(spark))
        yield meter


@dataclass
class _Counted:
    """The work of one step so far."""

    queries: int = 0
    query_s: float = 0.0
    analyses: int = 0
    analysis_s: float = 0.0
    operations: list[str] = field(default_factory=list)
    """The ids of its queries on the server."""


# -- Connect -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _client_metered(spark: Any) -> Iterator[SparkMeter]:
    """Wrap the methods with which this client sends its requests."""
    client = spark.client
    meter = _ClientMeter(client)
    covered = {
        "_analyze": meter.analysing(client._analyze),
        "_execute": meter.executing(client._execute),
        "_execute_and_fetch_as_iterator": meter.fetching(client._execute_and_fetch_as_iterator),
    }
    before = {name: vars(client)[name] for name in covered if name in vars(client)}
    vars(client).update(covered)
    try:
        yield meter
    finally:
        for name in covered:
            vars(client).pop(name, None)
        vars(client).update(before)


class _ClientMeter:
    """Counts the requests of one client, by the step of the thread that sends them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._steps: dict[int | None, _Counted] = {None: _Counted()}

    def enter(self, step: int | None) -> None:
        self._thread.step = step
        with self._lock:
            self._steps.setdefault(step, _Counted())

    @property
    def _counted(self) -> _Counted:
        """The work of the step that is open in this thread."""
        return self._steps[getattr(self._thread, "step", None)]

    def collect_work(self) -> Steps:
        server_work = _server_work(self._client)
        with self._lock:
            return {step: _work(counted, server_work) for step, counted in self._steps.items()}

    def analysing(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with which the client asks about a plan, counted."""

        def analyse(*args: Any, **kwargs: Any) -> Any:
            counted, began = self._counted, seams.monotonic()
            try:
                return send(*args, **kwargs)
            finally:
                with self._lock:
                    counted.analyses += 1
                    counted.analysis_s += seams.monotonic() - began

        return analyse

    def executing(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with which the client has a command executed, counted."""

        def execute(request: Any, *args: Any, **kwargs: Any) -> Any:
            counted, began = self._counted, seams.monotonic()
            try:
                return send(request, *args, **kwargs)
            finally:
                self._add_query(counted, request, seams.monotonic() - began)

        return execute

    def fetching(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with which the client reads what a query returns, counted without the reader's own time."""

        def fetch(request: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            counted, seconds, began = self._counted, 0.0, seams.monotonic()
            responses = send(request, *args, **kwargs)
            try:
                for response in responses:
                    seconds += seams.monotonic() - began
                    yield response
                    began = seams.monotonic()
                seconds += seams.monotonic() - began
            finally:
                getattr(responses, "close", bool)()
                self._add_query(counted, request, seconds)

        return fetch

    def _add_query(self, counted: _Counted, request: Any, seconds: float) -> None:
        with self._lock:
            counted.queries += 1
            counted.query_s += seconds
            counted.operations.append(str(getattr(request, "operation_id", "")))


_QUESTION: Final = "tidegate.work"
_PATIENCE_S: Final = 5.0


def _server_work(client: Any) -> dict[str, list[int]] | None:
    """Return Spark's work by operation since the last call, from the server, or None if it does not count."""
    with contextlib.suppress(Exception):
        from google.protobuf.any_pb2 import Any as Packed  # type: ignore[import-untyped]
        from google.protobuf.wrappers_pb2 import StringValue  # type: ignore[import-untyped]
        from pyspark.sql.connect.proto import base_pb2

        question, answer = Packed(), StringValue()
        question.Pack(StringValue(value=_QUESTION))
        request = base_pb2.GetStatusRequest(session_id=client._session_id, extensions=[question])
        request.user_context.user_id = client._user_id or ""
        response = client._stub.GetStatus(request, metadata=client._builder.metadata(), timeout=_PATIENCE_S)
        for extension in response.extensions:
            if extension.Unpack(answer):
                return _lines(answer.value)
    return None


def _lines(text: str) -> dict[str, list[int]]:
    """Parse the lines that SparkWork.java writes: a name, and its figures."""
    lines: dict[str, list[int]] = {}
    for line in text.splitlines():
        name, *figures = line.split()
        lines[name] = list(map(int, figures))
    return lines


def _work(counted: _Counted, server_work: dict[str, list[int]] | None) -> SparkWork:
    jvm_work = SparkWork()
    if server_work is not None:
        jvm_work = _jvm_work([server_work[id] for id in counted.operations if id in server_work])
    return SparkWork(
        queries=counted.queries,
        query_s=round(counted.query_s, 3),
        analyses=counted.analyses,
        analysis_s=round(counted.analysis_s, 3),
        planning_s=jvm_work.planning_s,
        jobs=jvm_work.jobs,
        stages=jvm_work.stages,
        tasks=jvm_work.tasks,
        running_s=jvm_work.running_s,
        task_s=jvm_work.task_s,
        slowest_task_s=jvm_work.slowest_task_s,
        spilled_bytes=jvm_work.spilled_bytes,
        read_bytes=jvm_work.read_bytes,
        written_bytes=jvm_work.written_bytes,
    )


# -- a Spark in this process -----------------------------------------------------------------------------

_SOURCE: Final = Path(__file__).with_name("SparkWork.java")
_TAG: Final = "tidegate_step_"
_FIRST_FIGURES, _FIGURES = 8, 12
_listening = threading.Lock()
_listeners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By Spark context, the counting object in its JVM. Compiling it takes some tenths of a second."""


@contextlib.contextmanager
def _jvm_metered(spark: Any) -> Iterator[SparkMeter]:
    meter = _JvmMeter(spark.sparkContext)
    meter.enter(None)
    try:
        yield meter
    finally:
        meter.untag()


class _JvmMeter:
    """Tags all of a thread's requests to Spark with its step."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._listener = _listener(context)
        self._job = f"{_TAG}{seams.new_id()}_"
        self._thread = threading.local()
        self._steps: dict[str, int | None] = {}

    def enter(self, step: int | None) -> None:
        self.untag()
        tag = self._thread.tag = f"{self._job}{'' if step is None else step}."
        self._steps[tag] = step
        with contextlib.suppress(Exception):  # the next use of Spark reports why it does not answer
            self._context.addJobTag(tag)

    def untag(self) -> None:
        """Remove the thread's tag."""
        tag = getattr(self._thread, "tag", "")
        if not tag:  # Spark refuses an empty tag, and transferring that error takes 12 ms
            return
        with contextlib.suppress(Exception):
            self._context.removeJobTag(tag)
        self._thread.tag = ""

    def collect_work(self) -> Steps:
        with contextlib.suppress(Exception):
            by_tag = _lines(self._listener.take(self._job))
            steps: dict[int | None, SparkWork] = {}
            for job_tag, step in self._steps.items():
                tag = job_tag.removeprefix(self._job)
                steps[step] = _jvm_work([by_tag[tag]] if tag in by_tag else [])
            return steps
        return {}


def _listener(context: Any) -> Any:
    """Return the counting object in the context's JVM, compiled on the first call."""
    with _listening:
        if context not in _listeners:
            jvm, gateway = context._jvm, context._gateway
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.cook(_SOURCE.read_text(encoding="utf-8"))
            arguments = gateway.new_array(jvm.java.lang.Object, 2)
            arguments[0], arguments[1] = context._jsc.sc(), _TAG
            listener_class = compiler.getClassLoader().loadClass(_SOURCE.stem)
            _listeners[context] = listener_class.getConstructors()[0].newInstance(arguments)
        return _listeners[context]


def _jvm_work(parts: list[list[int]]) -> SparkWork:
    """Sum up the figures of SparkWork.java, in its order. A server of an earlier version reports fewer."""
    columns = list(zip(*parts, strict=True)) if parts else [(0,)] * _FIGURES
    queries, query_ms, planning_ms, jobs, stages, tasks, running_ms, task_ms = map(sum, columns[:_FIRST_FIGURES])
    work = SparkWork(
        queries=queries,
        query_s=query_ms / 1000,
        planning_s=planning_ms / 1000,
        jobs=jobs,
        stages=stages,
        tasks=tasks,
        running_s=running_ms / 1000,
        task_s=task_ms / 1000,
    )
    if len(columns) < _FIGURES:
        return work
    slowest_ms, (spilled, read, written) = max(columns[_FIRST_FIGURES]), map(sum, columns[_FIRST_FIGURES + 1 :])
    return msgspec.structs.replace(
        work, slowest_task_s=slowest_ms / 1000, spilled_bytes=spilled, read_bytes=read, written_bytes=written
    )
