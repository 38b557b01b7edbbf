"""Translates Spark's errors into tidegate's five kinds, without Java, and without values of rows.

Unavailable: the server, the connection or the session is lost, or something that Spark needs did not answer.
Invalid: the data, the plan or the user's own code is wrong; the same input would fail again.
Any other error is Unavailable as well, because retries are bounded, but a job that is never retried is lost.
"""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Iterator

from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, TidegateError, Unavailable
from tidegate.spark.refusals.conditions import is_about_data, without_values
from tidegate.spark.refusals.malformed_record import malformed_record

__all__ = ["code_of_error", "full_disk", "silence_pyspark", "translate", "translated"]

_QUOTING_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

_LIMIT = 400
# Checked in this order, on the messages of the error and its causes.
_LOST = re.compile(
    r"INVALID_HANDLE\.|NO_ACTIVE_SESSION|RESPONSE_ALREADY_RECEIVED|server side session identifier"
    r"|SparkContext was shut down|stopped SparkContext|JAVA_GATEWAY_EXITED|Answer from Java side is empty"
    r"|Connection refused|Connection reset by peer|Broken pipe|Socket closed|RST_STREAM|Stream removed"
    r"|Error while sending or receiving|An error occurred while trying to connect to the Java server"
    r"|\AAn error occurred while calling [\w.]+\Z"  # without Java's message
)
_CANCELLED = re.compile(r"OPERATION_CANCELED|SPARK_JOB_CANCELLED|Job \d+ cancelled|SQLSTATE: HY008")
_TLS = re.compile(r"[Ss]sl handshake failed|SSL_ERROR|WRONG_VERSION_NUMBER|CERTIFICATE_VERIFY_FAILED")
_NO_ROOM = re.compile(r"OutOfMemoryError|Java heap space|GC overhead limit|UNABLE_TO_ACQUIRE_MEMORY|\bExitCode 52\b")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_TOO_LARGE = re.compile(r"larger than max|bigger than spark\.driver\.maxResultSize|MAX_RECORDS_PER_FETCH|maxPlanSize")
_WORKER_LOST = re.compile(r"ExecutorLostFailure|Python worker exited unexpectedly|FetchFailed|executor \S+ exited")
_STORAGE = re.compile(
    r"SocketTimeoutException|ConnectException|UnknownHostException|SocketException|NoRouteToHost|SSLException"
    r"|Connection reset|Read timed out|SlowDown|ServiceUnavailable|Status Code: 50\d|InternalError \(Service"
)
# "[CAST_INVALID_INPUT] The value …", or with a sub-condition after a dot.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)?)\]\s*(.+)")
# Conditions that only say where something failed: the failure itself is in a cause.
_WRAPPERS = ("TASK_WRITE_FAILED", "FAILED_READ_FILE.NO_HINT", "FAILED_EXECUTE_UDF", "STREAM_FAILED", "INTERNAL_ERROR")
_SPARK_FAULT = ("INTERNAL_ERROR", "SPARK_")
_FILE = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+?)\.?(?=\s)")
_CALLED_FROM = re.compile(r"was called from\s+(\S+\.py):(\d+)")
_SQL_PART = re.compile(r"== SQL \(line \d+, position \d+\) ==\n([^\n]+)\n[ ^]+")
_MISSING_CLASS = re.compile(r"ClassNotFoundException|NoClassDefFoundError|No FileSystem for scheme")
_OUR_ERROR = re.compile(r"tidegate\.errors\.(Corrupt|Fenced|Invalid|Rejected|Unavailable): (.+)")
_KINDS = {kind.__name__: kind for kind in (Corrupt, Fenced, Invalid, Rejected, Unavailable)}
_OF_CODE = re.compile(r"(?:\w+\.)*(?:ImportError|ModuleNotFoundError|NameError|NotImplementedError|SyntaxError)\b")
"""Python exceptions that are about code alone. The message of any other exception may quote a row."""
_OF_SYSTEM = re.compile(
    r"IOException|File|Socket|Connect|Timeout|Host|Route|Ssl|SSL|Access|Class|Path|RpcEnv|RpcTimeout"
)
_ABOUT_CODE = ("Analysis", "InvalidPlan", "Parse", "Pickle", "PySpark", "Session", "TempTable", "Unsupported")
"""Exceptions of pyspark about code. The rest are about data."""
_OWN = "tidegate: "
"""The prefix of tidegate's own messages, with which its SQL fails."""
_GRPC = re.compile(r"<_\w*Rpc\w* of RPC|\s*(?:status|debug_error_string|details) = |>\s*$")
_DETAILS = re.compile(r'\A\s*<_\w*Rpc\w* of RPC [^\n]*\n(?:[^\n]*\n)?\s*details = "([^"]+)"')
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]*\b(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)
# A traceback's frames, which are indented, and the line after them.
_PYTHON_TRACE = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*)(\S.*)")
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RETRY = (
    "Try again: the retry gets a new Spark server or session if it needs one. `tidegate spark status` shows its log."
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise Spark's errors in the block as tidegate's. Other errors pass unchanged."""
    silence_pyspark()
    try:
        yield
    except Exception as error:
        meaning = translate(error)
        if meaning is None or meaning is error:
            raise
        raise meaning from error


def silence_pyspark() -> None:
    """Keep pyspark from writing errors of queries to standard error and thus to task logs, because they quote rows."""
    for name in _QUOTING_LOGGERS:
        logging.getLogger(name).disabled = True


def translate(error: BaseException) -> TidegateError | None:
    """Return tidegate's error for a Spark error, or None for any other error, such as one in the user's own code."""
    if isinstance(error, TidegateError):
        return error
    code = _grpc_code(error)
    if not code and not _is_of_spark(error):
        return None
    text = _everything(error)
    translated = malformed_record(text) or _users_code(error, text) or full_disk(text) or _lost(text, code)
    return translated or _short_of(text) or _users(error, text) or _unknown(text)


def full_disk(text: str) -> TidegateError | None:
    """Translate errors of a full disk. It is also the cause of lost connections and workers in the same text."""
    if not _DISK_FULL.search(text):
        return None
    return Unavailable(
        "The disk is full.", help="Make room, or point spark.local.dir to another disk.", reason="DISK_FULL"
    )


def code_of_error(error: BaseException) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the places of a failing expression, according to Spark: files with line numbers, and SQL texts."""
    text = _everything(error)
    lines = [(file, int(line)) for file, line in _CALLED_FROM.findall(text)]
    return list(dict.fromkeys(lines)), list(dict.fromkeys(part.strip() for part in _SQL_PART.findall(text)))


def _lost(text: str, code: str) -> TidegateError | None:
    """Translate errors that mean that the connection, the session or the job is gone."""
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return Invalid(
            "The Spark server refuses the token.",
            help="Correct the token in spark.remote. If the server is the embedded one, try again.",
            reason="SPARK_TOKEN",
        )
    if _TOO_LARGE.search(text):
        return Invalid(
            f"A result or plan is too large for the driver: {_pick_safe_message(text)}",
            help="Do not collect large results, or raise the limit in the message.",
            reason="SPARK_LIMIT",
        )
    if _TLS.search(text):
        return Invalid(
            f"The Spark server and this process do not agree on TLS: {_pick_safe_message(text)}",
            expected="a server with a certificate that this machine trusts, where the URL has a token or use_ssl=true",
            help="Put a proxy with TLS before the server, or run it on this machine (`tidegate spark serve`) and write "
            "sc://localhost:port/;token=…: without TLS, a token is only sent to this machine.",
            reason="SPARK_TLS",
        )
    if code == "DEADLINE_EXCEEDED":
        return Unavailable("The Spark server did not answer in time.", help=_RETRY, reason="SPARK_NO_ANSWER")
    if code in ("UNAVAILABLE", "ABORTED") or _LOST.search(text):
        return Unavailable(
            f"The Spark server or the session in it is gone: {_pick_safe_message(text)}",
            help=_RETRY,
            reason="SPARK_LOST",
        )
    if code == "CANCELLED" or _CANCELLED.search(text):
        return Unavailable(
            f"Spark cancelled the job: {_pick_safe_message(text)}", help=_RETRY, reason="SPARK_CANCELLED"
        )
    return None


def _short_of(text: str) -> TidegateError | None:
    """Translate errors that mean that Spark lacks a resource, which the next attempt may have."""
    if _NO_ROOM.search(text):
        return Unavailable("Spark ran out of memory.", help="Raise spark.memory.", reason="SPARK_MEMORY")
    if worker := _WORKER_LOST.search(text):
        return Unavailable(
            f"Spark lost a worker: {_pick_safe_message(text[worker.start() :])}",
            help=_RETRY + " If it happens again, workers may need more memory.",
            reason="SPARK_WORKER_LOST",
        )
    if _STORAGE.search(text) and not _condition(text):
        return Unavailable(f"Storage did not answer: {_pick_safe_message(text)}", help=_RETRY, reason="STORAGE")
    return None


def _users_code(error: BaseException, text: str) -> TidegateError | None:
    """Translate an exception in a Python function: the last line of the worker's traceback, and its place in user
    code."""
    from pyspark.errors import PythonException

    if not isinstance(error, PythonException):
        return None
    traces = _PYTHON_TRACE.findall(text)
    trace, last = traces[-1] if traces else ("", _first(text))
    last = _short(last)
    tidegate_error = _OUR_ERROR.fullmatch(last)
    if tidegate_error:  # raised by tidegate's function, or by one that raises our errors on purpose
        return _KINDS[tidegate_error[1]](tidegate_error[2], reason="USER_CODE")
    message = last if _OF_CODE.match(last) else last.partition(":")[0]
    frames = [frame for frame in _PYTHON_FRAME.findall(trace) if "/pyspark/" not in frame[0]]
    frames = [frame for frame in frames if "/tidegate/" not in frame[0]] or frames  # prefer the user's own line
    location = ""
    if frames:
        file, line, function = frames[-1]
        location = f" ({file}, line {line}, in {function})"
    return Invalid(
        f"A Python function that ran in Spark failed: {message}{location}",
        help="Correct the function, or the data that it cannot handle.",
        reason="USER_CODE",
        quoted=last,
    )


def _users(error: BaseException, text: str) -> TidegateError | None:
    """Translate errors in data, plan or settings: a retry would fail again."""
    from pyspark.errors import PySparkException

    file = _FILE.search(text)
    of_file = f" (file {file[1]})" if file else ""
    condition = _condition(text)
    if condition and not condition[0].startswith(_SPARK_FAULT):
        quoted = _short(f"[{condition[0]}] {condition[1]}")
        refusal = _short(f"[{condition[0]}] {_message(*condition, text)}")
        if file and file[1] in refusal:
            of_file = ""
        return Invalid(
            f"Spark refuses: {refusal}{of_file}",
            help="Correct the data, or the stage that reads it.",
            reason=condition[0].replace(".", "_"),
            quoted=quoted if quoted != refusal else "",
        )
    vague = type(error).__name__ in ("UnknownException", "SparkException", "SparkConnectGrpcException")
    if isinstance(error, PySparkException) and not vague:
        name, message = type(error).__name__, _first(text)
        if name.startswith(_ABOUT_CODE):
            return Invalid(f"Spark refuses: {message}", help="Correct the stage or the setting in the message.")
        return Invalid(f"Spark refuses: {name}", help="Correct the data, or the stage.", quoted=message)
    if "S3AFileSystem not found" in text:
        return Invalid(
            "Spark cannot read s3:// URLs: it lacks Hadoop's file system for them",
            expected="the jars of tidegate/spark/jars-s3.toml in addition",
            help="Run `tidegate spark jars --s3`, or add hadoop-aws and its dependencies to spark.jars in spark.conf.",
            reason="S3_JARS",
        )
    if _MISSING_CLASS.search(text):
        return Invalid(f"Spark lacks a jar: {_deepest(text)}", help="Add it to spark.conf as `spark.jars`.")
    if "FAILED_READ_FILE" in text:
        return Invalid(
            f"Spark cannot read a file: {_deepest(text)}{of_file}",
            help="Restore the file, or leave it out.",
            reason="FAILED_READ_FILE",
            quoted=_quoted(text),
        )
    return None


def _unknown(text: str) -> Unavailable:
    return Unavailable(f"Spark failed: {_deepest(text)}", help=_RETRY, reason="SPARK_FAILED", quoted=_quoted(text))


def _is_of_spark(error: BaseException) -> bool:
    """Return whether an error is Spark's, by its type's name, so that pyspark need not be imported."""
    if isinstance(error, OSError):  # py4j raises Python's own error for a broken connection to the JVM
        frames = list(traceback.walk_tb(error.__traceback__))
        return bool(frames) and str(frames[-1][0].f_globals.get("__name__")).startswith("py4j.")
    return any(base.__module__.split(".")[0] in ("pyspark", "py4j") for base in type(error).__mro__)


def _grpc_code(error: BaseException) -> str:
    """Return the name of the gRPC status of a plain RpcError, or of pyspark's error for one without details."""
    if any(base.__module__.split(".")[0] == "grpc" for base in type(error).__mro__):
        code = getattr(error, "code", None)
        if callable(code):
            return str(getattr(code(), "name", ""))
        return "UNAVAILABLE"
    code = getattr(error, "getGrpcStatusCode", None)
    if callable(code):
        return str(getattr(code(), "name", ""))
    return ""


def _everything(error: BaseException) -> str:
    """Return the error's message, followed by those of its causes that Spark passes on."""
    details = getattr(error, "details", None)
    parts = [str(details() or "") if callable(details) else "", str(error)]
    stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
    parts.append(str(stack or ""))
    return "\n".join(part for part in dict.fromkeys(parts) if part)


def _condition(text: str) -> tuple[str, str] | None:
    """Return the innermost of Spark's named conditions that says what failed, not only where, with its text."""
    conditions = [match for match in _CONDITION.findall(text) if match[0] not in _WRAPPERS]
    return conditions[-1] if conditions else None


def _first(text: str) -> str:
    """Return the first message. In gRPC's errors it is on a separate line: "details = …"."""
    if detail := _DETAILS.search(text):
        return _short(detail[1])
    for line in text.splitlines():
        if line.strip() and not _GRPC.match(line):
            return _short(line.strip())
    return _short("no message")


def _message(condition: str, first_line: str, text: str) -> str:
    """Return a condition's message without values of rows."""
    start = text.rfind(f"[{condition}]") + len(condition) + 2
    full_message = text[start:].strip()
    if first_line.startswith(_OWN) or not is_about_data(condition, full_message):
        return first_line
    return without_values(condition, full_message)


def _pick_safe_message(text: str) -> str:
    """Return the first message. If it is about data, and so may quote a row, leave out its values."""
    condition = _condition(text)
    if condition and is_about_data(*condition):
        return f"[{condition[0]}] {_message(*condition, text)}"
    return _first(text)


def _deepest(text: str) -> str:
    """Return the innermost exception, with its message only if it is about storage or the system: that quotes no
    row."""
    causes = _CAUSE.findall(text)
    if not causes:
        return _pick_safe_message(text)
    name, message = causes[-1]
    return _short(f"{name}: {message}" if _OF_SYSTEM.search(name) else name)


def _quoted(text: str) -> str:
    causes = _CAUSE.findall(text)
    if causes:
        return _short(f"{causes[-1][0]}: {causes[-1][1]}")
    return _first(text)


def _short(text: str) -> str:
    text = re.sub(r"\s*SQLSTATE: \w{5};?", "", text).strip()
    if len(text) <= _LIMIT:
        return text
    return text[: _LIMIT - 1] + "…"
