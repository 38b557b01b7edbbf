"""What errors of Spark mean, with errors made by hand. tests/spark has real ones."""

import grpc
import pytest
from pyspark.errors import PySparkTypeError
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    PythonException,
    SparkConnectGrpcException,
    SparkException,
    SparkRuntimeException,
    UnknownException,
)

from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.spark.errors import translate, translated

STATUS = grpc.StatusCode


class Rpc(grpc.RpcError):
    def __init__(self, code, details=""):
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


TASK = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: "

CASES = {
    "server killed": (Rpc(STATUS.UNAVAILABLE, "Socket closed"), Unavailable, "SPARK_LOST"),
    "server killed, told by pyspark": (
        SparkConnectGrpcException("failed to connect", grpc_status_code=STATUS.UNAVAILABLE),
        Unavailable,
        "SPARK_LOST",
    ),
    "server killed, told by gRPC in pyspark's words": (
        SparkConnectGrpcException(
            "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "
            '"recvmsg:Connection reset by peer"\n\tdebug_error_string = "UNKNOWN: …"\n>',
            grpc_status_code=STATUS.UNAVAILABLE,
        ),
        Unavailable,
        "SPARK_LOST",
    ),
    "hangs": (Rpc(STATUS.DEADLINE_EXCEEDED), Unavailable, "SPARK_NO_ANSWER"),
    "session closed": (
        SparkConnectGrpcException("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed."),
        Unavailable,
        "SPARK_LOST",
    ),
    "another server": (
        SparkException("Received incorrect server side session identifier for request."),
        Unavailable,
        "SPARK_LOST",
    ),
    "context stopped": (
        UnknownException("Job 3 cancelled because SparkContext was shut down"),
        Unavailable,
        "SPARK_LOST",
    ),
    "wrong token": (Rpc(STATUS.UNAUTHENTICATED, "Invalid authentication token"), Invalid, "SPARK_TOKEN"),
    "no TLS": (
        Rpc(
            STATUS.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:15002: Ssl handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER",
        ),
        Invalid,
        "SPARK_TLS",
    ),
    "cancelled": (SparkException("[SPARK_JOB_CANCELLED] Job 3 cancelled"), Unavailable, "SPARK_CANCELLED"),
    "interrupted": (
        SparkException("[OPERATION_CANCELED] The operation has been canceled."),
        Unavailable,
        "SPARK_CANCELLED",
    ),
    "memory": (SparkException(TASK + "java.lang.OutOfMemoryError: Java heap space"), Unavailable, "SPARK_MEMORY"),
    "disk": (SparkException(TASK + "java.io.IOException: No space left on device"), Unavailable, "DISK_FULL"),
    "worker": (SparkException(TASK + "Python worker exited unexpectedly (crashed)"), Unavailable, "SPARK_WORKER_LOST"),
    "storage": (UnknownException("java.net.SocketTimeoutException: Read timed out"), Unavailable, "STORAGE"),
    "too large": (Rpc(STATUS.RESOURCE_EXHAUSTED, "Received message larger than max"), Invalid, "SPARK_LIMIT"),
    "cast": (
        SparkException(TASK + '[CAST_INVALID_INPUT] The value "x" cannot be cast. SQLSTATE: 22018'),
        Invalid,
        "CAST_INVALID_INPUT",
    ),
    "what failed, not where": (
        SparkException("[TASK_WRITE_FAILED] Task failed.\nCaused by: x: [DIVIDE_BY_ZERO] Division by zero."),
        Invalid,
        "DIVIDE_BY_ZERO",
    ),
    "plan": (AnalysisException("cannot resolve it"), Invalid, "INVALID"),
    "misuse": (PySparkTypeError("should be a str"), Invalid, "INVALID"),
    "jar": (UnknownException("java.lang.ClassNotFoundException: org.example.Driver"), Invalid, "INVALID"),
    "unreadable": (
        SparkException(
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.parquet. \nCaused by: x"
        ),
        Invalid,
        "FAILED_READ_FILE",
    ),
    "Spark's own fault": (SparkException("[INTERNAL_ERROR] The Spark SQL phase failed"), Unavailable, "SPARK_FAILED"),
    "unknown": (UnknownException("java.lang.IllegalStateException: what?"), Unavailable, "SPARK_FAILED"),
}


@pytest.mark.parametrize("case", CASES)
def test_kind_and_reason(case):
    error, kind, reason = CASES[case]
    told = translate(error)
    assert type(told) is kind
    assert told.reason == reason
    assert told.help
    assert len(told.what) < 500
    assert "\n" not in told.what
    assert "SQLSTATE" not in told.what


def python_error(last):
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "/v/lib/pyspark/worker.py", line 1, in main\n'
        '  File "/jobs/orders.py", line 12, in clean\n'
        f"    raise it\n{last}\n\n\tat org.apache.spark.Java.frame(Java.scala:1)\n"
    )


def test_what_grpc_says_is_told_without_its_wrapping():
    told = translate(CASES["server killed, told by gRPC in pyspark's words"][0])
    assert told.what.endswith("is gone: recvmsg:Connection reset by peer")


def test_a_users_function_is_told_with_its_line():
    told = translate(python_error("ValueError: cannot take 0"))
    assert isinstance(told, Invalid)
    assert told.what.endswith("failed: ValueError (/jobs/orders.py, line 12, in clean)"), "it may quote a row"
    assert told.quoted == "ValueError: cannot take 0"
    told = translate(python_error("NameError: name 'amuont' is not defined"))
    assert "NameError: name 'amuont' is not defined (/jobs" in told.what


def test_a_users_function_that_speaks_of_connections_has_not_lost_ours():
    assert isinstance(translate(python_error("ConnectionError: Connection refused")), Invalid)


@pytest.mark.parametrize("kind", [Corrupt, Rejected, Unavailable])
def test_our_errors_keep_their_kind_on_the_way_out_of_a_worker(kind):
    told = translate(python_error(f"tidegate.errors.{kind.__name__}: the record is torn"))
    assert type(told) is kind
    assert told.what == "the record is torn"


def test_what_is_not_sparks_passes():
    assert translate(ValueError("x")) is None
    with pytest.raises(ZeroDivisionError), translated():
        _ = 1 / 0
    mine = Rejected("not now")
    assert translate(mine) is mine
    with pytest.raises(Rejected) as caught, translated():
        raise mine
    assert caught.value is mine


def test_what_is_sparks_keeps_its_cause():
    error = UnknownException("java.lang.IllegalStateException: what?")
    with pytest.raises(Unavailable, match=r"Spark failed: IllegalStateException\n") as caught, translated():
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.quoted == "IllegalStateException: what?", "what a class that nobody knows says may quote a row"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            '[CAST_INVALID_INPUT] The value \'O\'Brien\nSECRET\' of the type "STRING" cannot be cast to "INT" '
            "because it is malformed. Correct the value as per the syntax, or change its target type. Use `try_cast` "
            "to tolerate malformed input and return NULL instead. SQLSTATE: 22018",
            '[CAST_INVALID_INPUT] The value … of the type "STRING" cannot be cast to "INT" because it is malformed.',
        ),
        (
            "[CAST_INVALID_INPUT] In other words: SECRET. SQLSTATE: 22018",
            "The value … of the type … cannot be cast to …",
        ),
        ("[NEW_IN_SPARK_9] The value SECRET is bad. SQLSTATE: 22018", "[NEW_IN_SPARK_9] its text is left out"),
        ("[NEW_IN_SPARK_9] The value SECRET is bad.", "[NEW_IN_SPARK_9] its text is left out"),
        ("[USER_RAISED_EXCEPTION] customer SECRET SQLSTATE: P0001", "[USER_RAISED_EXCEPTION] …"),
        (
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` SECRET SQLSTATE: 22012",
            "[DIVIDE_BY_ZERO] Division by zero.",
        ),
        (
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small (id < 5) violated by row with values:\n"
            " - id : SECRET SQLSTATE: 23001",
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint … … violated by row with values: …",
        ),
    ],
)
def test_a_condition_about_data_is_told_without_the_data(text: str, what: str):
    told = translate(SparkRuntimeException(text))
    assert isinstance(told, Invalid)
    assert what in told.what
    assert "SECRET" not in f"{told}{told!r}"


def test_a_condition_about_code_quotes_the_code():
    told = translate(AnalysisException("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `amuont` … SQLSTATE: 42703"))
    assert "A column `amuont`" in told.what
    assert told.quoted == ""


def test_a_full_disk_is_told_as_that_and_not_by_the_connections_that_it_breaks():
    """Spark's own log then begins with warnings about those."""
    warning = "WARN TransportChannelHandler: Exception in connection from /127.0.0.1:4040: Connection reset by peer"
    for text in (
        f"{warning}\njava.io.IOException: No space left on device",
        f"Broken pipe\n{warning}\nDisk quota exceeded",
    ):
        told = translate(SparkException(text))
        assert isinstance(told, Unavailable)
        assert (told.reason, told.what) == ("DISK_FULL", "The disk is full.")


def test_pyspark_writes_no_error_of_a_query_to_the_log_of_a_task(capfd: pytest.CaptureFixture[str]) -> None:
    """It would quote the value, beside our own text that does not."""
    from pyspark.logger import PySparkLogger

    with translated():
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).exception("The value 'SECRET-77' cannot be cast", errorClass="CAST")
    assert "SECRET-77" not in capfd.readouterr().err
