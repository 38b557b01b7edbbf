"""What Spark does for each step of a job, counted as it happens; microseconds for each request.

    with metered(spark) as meter:
        meter.enter(0)          # from now on it counts for step 0
        ...
        meter.enter(None)       # and now for no step
        meter.taken()           # {0: SparkWork(queries=3, ...), None: SparkWork(queries=0, ...)}

What is known depends on how Spark is reached:

    Connect         the requests to the server and how long each took, from pyspark's client
      with our own  Spark's jobs, stages, tasks and their times, too: the server counts them (SparkWork.java) by
      server        operation, and is asked once, at the end
    local, submit   the same from the JVM of this process, by a job tag of the step. Analyses are not known: there each
                    step of a frame is analysed as it is built. What other threads ask for counts for no step

Whatever does not fit, such as another pyspark, leaves figures unknown, and never fails.
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
"""By step; None is what belongs to none."""


class SparkMeter(Protocol):
    """Counts what Spark does, by the step that is open."""

    def enter(self, step: int | None) -> None:
        """Let all that this thread asks for from now on count for this step; None: for none."""

    def take_work(self) -> Steps:
        """Return what Spark has done by now, once. A step that is not there has had none; {}: nothing is known."""


class Unmetered:
    """For a Spark of which nothing is known."""

    def enter(self, step: int | None) -> None: ...

    def take_work(self) -> Steps:
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
    """Put our methods in front of those with which the client sends its requests, on this one object."""
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

    def take_work(self) -> Steps:
        told = _server_work(self._client)
        with self._lock:
            return {step: _work(counted, told) for step, counted in self._steps.items()}

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
    """Ask the server what Spark has done, by operation, since it was asked last. None: it does not count."""
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
    """Read the lines that SparkWork.java writes: a name, and its figures."""
    return {name: list(map(int, figures)) for name, *figures in map(str.split, text.splitlines())}


def _work(counted: _Counted, told: dict[str, list[int]] | None) -> SparkWork:
    mine = SparkWork() if told is None else _jvm_work([told[id] for id in counted.operations if id in told])
    return SparkWork(
        queries=counted.queries,
        query_s=round(counted.query_s, 3),
        analyses=counted.analyses,
        analysis_s=round(counted.analysis_s, 3),
        planning_s=mine.planning_s,
        jobs=mine.jobs,
        stages=mine.stages,
        tasks=mine.tasks,
        running_s=mine.running_s,
        task_s=mine.task_s,
        slowest_task_s=mine.slowest_task_s,
        spilled_bytes=mine.spilled_bytes,
        read_bytes=mine.read_bytes,
        written_bytes=mine.written_bytes,
    )


# -- a Spark in this process -----------------------------------------------------------------------------

_SOURCE: Final = Path(__file__).with_name("SparkWork.java")
_TAG: Final = "tidegate_step_"
_FIRST_FIGURES, _FIGURES = 8, 12
_listening = threading.Lock()
_listeners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By Spark context, the object in its JVM that counts. Compiling it takes some tenths of a second."""


@contextlib.contextmanager
def _jvm_metered(spark: Any) -> Iterator[SparkMeter]:
    meter = _JvmMeter(spark.sparkContext)
    meter.enter(None)
    try:
        yield meter
    finally:
        meter.untag()


class _JvmMeter:
    """Gives all that a thread asks Spark for a tag of its step."""

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
        with contextlib.suppress(Exception):  # whoever uses Spark next is told why it does not answer
            self._context.addJobTag(tag)

    def untag(self) -> None:
        """Give no tag any more."""
        tag = getattr(self._thread, "tag", "")
        if not tag:  # Spark refuses an empty one, and to bring its error here takes 12 ms
            return
        with contextlib.suppress(Exception):
            self._context.removeJobTag(tag)
        self._thread.tag = ""

    def take_work(self) -> Steps:
        with contextlib.suppress(Exception):
            told = _lines(self._listener.take(self._job))
            tags = {tag.removeprefix(self._job): step for tag, step in self._steps.items()}
            return {step: _jvm_work([told[tag]] if tag in told else []) for tag, step in tags.items()}
        return {}


def _listener(context: Any) -> Any:
    """Return the object that counts in the context's JVM: compiled there if this is the first time."""
    with _listening:
        if context not in _listeners:
            jvm, gateway = context._jvm, context._gateway
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.cook(_SOURCE.read_text(encoding="utf-8"))
            arguments = gateway.new_array(jvm.java.lang.Object, 2)
            arguments[0], arguments[1] = context._jsc.sc(), _TAG
            made = compiler.getClassLoader().loadClass(_SOURCE.stem)
            _listeners[context] = made.getConstructors()[0].newInstance(arguments)
        return _listeners[context]


def _jvm_work(parts: list[list[int]]) -> SparkWork:
    """Sum up what SparkWork.java has counted: its order of figures. The server of an earlier version has fewer."""
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
