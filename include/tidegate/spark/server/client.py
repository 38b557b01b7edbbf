"""The client of Spark Connect: a channel with the token, and a session from its start to its end.

Nothing runs at import, and sessions share nothing, because gRPC does not survive a fork.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tidegate import seams
from tidegate.errors import Invalid
from tidegate.spark.errors import translated
from tidegate.spark.frame_facts import name_callers_quickly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import ChannelBuilder

__all__ = ["check_answers", "loopback", "open_session", "remote"]

_USER = "tidegate"
_REMOTE_MODE = "SPARK_CONNECT_MODE_ENABLED"
_mode_lock = threading.Lock()
_sessions_open = 0
_mode_before: str | None = None


def loopback(port: int, token: str) -> ChannelBuilder:
    """Return the channel to the embedded server.

    pyspark's own builder would connect to `localhost`, which may also be [::1], where another user could listen on the
    same port and receive the token; and gRPC would use a proxy from the environment.
    """
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client import ChannelBuilder

    class Loopback(ChannelBuilder):
        host = "127.0.0.1"

        @cached_property
        def channel(self) -> grpc.Channel:
            return self._insecure_channel(f"127.0.0.1:{port}")

        def toChannel(self) -> grpc.Channel:
            return self.channel

        def metadata(self) -> list[tuple[str, str]]:
            return _bearer(token)

    return Loopback([("grpc.enable_http_proxy", 0)], {ChannelBuilder.PARAM_USER_ID: _USER})


def remote(url: str) -> ChannelBuilder:
    """Return the channel to a server that the user runs. The URL may contain a token, so no message quotes it."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Remote(DefaultChannelBuilder):
        @cached_property
        def channel(self) -> grpc.Channel:
            if self.use_ssl or (self.token is not None and not _is_local_host(self.host or "")):
                return self._secure_channel(self.endpoint, grpc.ssl_channel_credentials())
            return self._insecure_channel(self.endpoint)

        def toChannel(self) -> grpc.Channel:
            return self.channel

        def metadata(self) -> list[tuple[str, str]]:
            return [*super().metadata(), *(_bearer(self.token) if self.token is not None else ())]

    # No watchdog checks that server. Spark's server allows a ping every five minutes.
    keepalive = [("grpc.keepalive_time_ms", 330_000), ("grpc.keepalive_timeout_ms", 30_000)]
    try:
        return Remote(url, keepalive)
    except (PySparkException, ValueError):
        raise Invalid(
            "The Spark setting `remote` is not a URL of Spark Connect.",
            expected="sc://host:port, with parameters like ;use_ssl=true;token=… if needed",
            help="Correct spark.remote.",
        ) from None


def _is_local_host(host: str) -> bool:
    """Return whether a host is this machine, so that calls do not cross a network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(token: str) -> list[tuple[str, str]]:
    """Add the token as a header to each call.

    pyspark uses gRPC's call credentials instead. Those are a callback into Python, and closing the last channel while
    one is being freed deadlocks on the interpreter's lock (grpc#42247; here once in ten sessions).
    """
    return [("authorization", f"Bearer {token}")]


def check_answers(builder: ChannelBuilder, timeout: float) -> None:
    """Make one real round trip, with the token, through a session that is released afterwards."""
    session_id = _uuid()
    with translated(), contextlib.closing(builder.toChannel()):
        _ask(builder, session_id, timeout)
        _release(builder, session_id, timeout)


@contextlib.contextmanager
def open_session(
    builder: ChannelBuilder, conf: dict[str, str], *, answer_timeout: float, patience: int
) -> Iterator[SparkSession]:
    """Open a new session on a server. patience: the number of retries of a broken connection."""
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    name_callers_quickly()
    with _remote_mode():
        opener = os.getpid()
        with translated():
            session: Any = SparkSession.Builder().channelBuilder(cast(Any, builder)).create()
            # By default a client retries a dead server for more than ten minutes.
            session.client.set_retry_policies([DefaultPolicy(patience, 2.0, max_backoff=5_000)])
        try:
            with translated():
                _ask(builder, session.session_id, answer_timeout)
                for key, value in conf.items():
                    session.conf.set(key, value)
            yield session
        finally:
            if os.getpid() == opener:
                _close(session, builder)
            else:
                # A forked child must not end its parent's session, and pyspark must not call the server when it exits.
                session.client._closed = True


def _close(session: Any, builder: ChannelBuilder) -> None:
    """Release the session on the server, which also cancels its running work. Never waits for long."""
    import grpc

    session.release_session_on_close = False  # pyspark's own release has no deadline
    if not session.is_stopped:
        with contextlib.suppress(grpc.RpcError):
            _release(builder, session.session_id, 5.0)
    session.stop()


def _ask(builder: ChannelBuilder, session_id: str, timeout: float) -> None:
    """Make Spark read a configuration value in this session."""
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    request = base_pb2.ConfigRequest(session_id=session_id, client_type=_USER)
    request.user_context.user_id = builder.userId or _user()
    request.operation.get.keys.append("spark.app.id")
    stub = cast(Any, base_pb2_grpc).SparkConnectServiceStub(builder.toChannel())
    stub.Config(request, timeout=timeout, metadata=builder.metadata())


def _release(builder: ChannelBuilder, session_id: str, timeout: float) -> None:
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    request = base_pb2.ReleaseSessionRequest(session_id=session_id, client_type=_USER)
    request.user_context.user_id = builder.userId or _user()
    stub = cast(Any, base_pb2_grpc).SparkConnectServiceStub(builder.toChannel())
    stub.ReleaseSession(request, timeout=timeout, metadata=builder.metadata())


def _user() -> str:
    """Return pyspark's default user for a URL without one. The server finds a session by user and id."""
    return os.getenv("SPARK_USER", os.getenv("USER", ""))


@contextlib.contextmanager
def _remote_mode() -> Iterator[None]:
    """Make pyspark.sql.functions build plans for Connect instead of calling a JVM, while a remote session is open.

    pyspark's switch for that is an environment variable, so it applies to the whole process.
    """
    global _sessions_open, _mode_before
    with _mode_lock:
        if _sessions_open == 0:
            _mode_before = os.environ.get(_REMOTE_MODE)
        os.environ[_REMOTE_MODE] = "1"
        _sessions_open += 1
    try:
        yield
    finally:
        with _mode_lock:
            _sessions_open -= 1
            if _sessions_open == 0 and _mode_before is None:
                os.environ.pop(_REMOTE_MODE, None)


def _uuid() -> str:
    digits = seams.new_id() + seams.new_id()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
