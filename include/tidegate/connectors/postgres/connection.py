"""Connects to the databases of the setting `connections`, and explains their errors.

The options of a connection are libpq's (`host`, `port`, `dbname`, `user`, `password`, `sslmode` …). They may contain
secrets, so no error, record or page shows them, and their values are masked in the drivers' messages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.postgres.table import TableName
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.airflow_login import is_airflow_login, login_problem, where_login_is
from tidegate.records.masking import MASK, without_logins
from tidegate.records.place import Place

if TYPE_CHECKING:
    import psycopg

__all__ = ["Database", "connection_problems"]

INSTALL: Final = "pip install 'tidegate[postgres]'"

_DEFAULTS: Final = {
    "application_name": "tidegate",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""With these, the loss of a machine is noticed within a minute. The system's own limit is two hours."""

_HARMLESS_OPTIONS: Final = frozenset(
    {"host", "hostaddr", "port", "dbname", "user", "sslmode", "target_session_attrs", *_DEFAULTS}
)
"""Options whose values may be shown."""

_LOGIN: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role \".*\" does not exist|is not permitted to "
    r"log in|permission denied for database|certificate|SSL was required|does not support SSL",
    re.I,
)
_NO_DATABASE: Final = re.compile(r"database \".*\" does not exist", re.I)
_BAD_OPTION: Final = re.compile(r"invalid connection option|invalid .* value|invalid port number|invalid integer", re.I)

_TRY_AGAIN: Final = ("08", "40", "53", "57", "58", "55P03", "55006", "25P03", "25006")
"""Prefixes of SQLSTATE codes for temporary errors, such as a lost connection, a conflict or a timeout."""


@dataclass(frozen=True)
class Database:
    """A database in the setting `connections`."""

    connection: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def resolve(cls, place: Place, connection: str) -> Database:
        """Look up a connection. Raise Invalid if it does not exist."""
        return cls(connection, _DEFAULTS | place.connection(connection))

    def shared_uri(self, table: TableName) -> str | None:
        """Return the table's address as other tools write it, or None if the options lack the server or database."""
        host = self.options.get("host", "").split(",")[0]
        port = self.options.get("port", "").split(",")[0] or "5432"
        database = self.options.get("dbname")
        if not host or host.startswith(("/", "@")) or not database:
            return None
        return f"postgres://{host}:{port}/{database}/{table.schema}/{table.name}"

    @contextlib.contextmanager
    def session(self, doing: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Open a session for short queries, in autocommit mode. doing: its purpose, for error messages."""
        psycopg = _module("psycopg")
        with (
            self.explained(doing),
            psycopg.connect(self._conninfo(), autocommit=True, prepare_threshold=None) as connection,
        ):
            yield connection

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[tuple[Any, Any]]:
        """Open a transaction for many rows, which the caller has to commit.

        Yield a connection of ADBC, which copies Arrow data in binary form, and a cursor of it.
        """
        dbapi = _module("adbc_driver_postgresql.dbapi")
        with self.explained(doing), dbapi.connect(self._conninfo()) as connection, connection.cursor() as cursor:
            yield connection, cursor

    @contextlib.contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Turn a driver's error into one of tidegate's, with a help text."""
        drivers = (_module("psycopg").Error, _module("adbc_driver_manager").Error)
        try:
            yield
        except drivers as error:
            raise self._explain(error, doing) from None  # the driver's message may contain secrets

    def _conninfo(self) -> str:
        psycopg = _module("psycopg")
        try:
            return str(psycopg.conninfo.make_conninfo("", **self.options))
        except psycopg.Error as error:
            raise self._explain(error, "reading its options") from None

    def _explain(self, error: Exception, doing: str) -> TidegateError:
        message, code = self._masked(str(error)), getattr(error, "sqlstate", None) or ""
        fields = _diagnosis(error)
        plain = _without_values(message, code, fields)
        explained = self._refusal(f"connection {self.connection!r}: {doing} failed: {plain}", message, code)
        detail = fields.get(_DETAIL, "")
        if plain != message or detail:
            told = message if detail in message else f"{message} {self._masked(detail)}"
            explained.quoted = told
        return explained

    def _refusal(self, problem: str, message: str, code: str) -> TidegateError:
        if code.startswith(_TRY_AGAIN):
            return Unavailable(
                problem,
                help="nothing is lost: the next attempt tries again",
                reason="DATABASE_BUSY" if code[:2] in "5540" else "",
            )
        if code.startswith("28") or (not code and _LOGIN.search(message)):
            return Invalid(
                problem,
                expected="a user who may log in",
                help=f"correct user, password and sslmode in {where_login_is(self.connection)}, or the "
                "server's pg_hba.conf",
                reason="BAD_LOGIN",
            )
        if code == "3D000" or (not code and _NO_DATABASE.search(message)):
            return Invalid(
                problem,
                expected="a database with this name",
                help=f"create it, or correct dbname in {where_login_is(self.connection)}",
                reason="NO_DATABASE",
            )
        if not code and _BAD_OPTION.search(message):
            return Invalid(
                problem,
                expected="options of libpq: host, port, dbname, user, password, sslmode …",
                help=f"correct {where_login_is(self.connection)}",
                reason="BAD_CONNECTION",
            )
        if code == "42501":
            return Invalid(
                problem,
                expected="the rights that docs/guides/postgres.md lists",
                help="ask an owner to grant them to the user of this connection",
                reason="NO_RIGHTS",
            )
        if code == "3F000":
            return Invalid(problem, help="create the schema, or name another one", reason="NO_SCHEMA")
        if not code:
            return Unavailable(
                problem,
                help="is the server running, and reachable from here? Nothing is lost: the next attempt tries again",
                reason="DATABASE_AWAY",
            )
        return Invalid(
            problem,
            expected="a database that accepts the statement",
            help="change what refuses it (a constraint, a trigger, a type), then run again: nothing was written",
            reason="DATABASE_REFUSES",
        )

    def _masked(self, text: str) -> str:
        """Return the first line of a driver's message, with secrets masked. The following lines contain row data."""
        text = re.sub(r"^[A-Z_]+: (\[libpq\] )?", "", text.strip())
        line = re.sub(r"Query was: .*", "", text.split("\n")[0]).strip()
        for name, value in self.options.items():
            if name not in _HARMLESS_OPTIONS and value:
                line = line.replace(value, MASK)
        return without_logins(line)


_QUOTES = re.compile("[\"'»«„“”‹›‘’「『]")
"""The characters that begin a quotation in PostgreSQL's messages, in all of its languages."""


_RAISED: Final = re.compile(r"\A[^\n]*(\bRAISE\b|PL/(?!pgSQL))")
"""Matches the first line of an error's context if the author of a function has written the message."""
_OBJECT_NAMES: Final = ("constraint_name", "column_name", "datatype_name", "table_name")
"""The objects that PostgreSQL names if one of its constraints refuses a row. Its message also has only such names."""


_DETAIL: Final = "message_detail"
"""The field that quotes the row, such as its key."""


def _diagnosis(error: Exception) -> Mapping[str, str]:
    """Return the fields of an error of psycopg or ADBC, by their names in lower case."""
    fields = {}
    diag = getattr(error, "diag", None)
    if diag is not None:
        for name in ("context", _DETAIL, *_OBJECT_NAMES):
            text = getattr(diag, name, None)
            if text:
                fields[name] = text
        return fields
    for key, value in getattr(error, "details", None) or ():
        name = str(key, "ascii").removeprefix("PG_DIAG_").lower() if isinstance(key, bytes) else str(key)
        fields[name] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return fields


def _without_values(message: str, code: str, fields: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return PostgreSQL's message without parts that may be a value of a row.

    Errors about data quote values, and authors of functions and triggers may raise any message with any code.

    fields: the fields of the error.
    """
    if code.startswith("P0") or _RAISED.search(fields.get("context", "")):
        return "a function or trigger refuses it"
    if code.startswith(("23", "44")) and not any(fields.get(name) for name in _OBJECT_NAMES):
        return "a constraint, function or trigger refuses it"
    if not code.startswith("22"):
        return message
    before, *quotation = _QUOTES.split(message, maxsplit=1)
    before = before.rstrip(" :")
    return f"{before}…" if quotation else before


def connection_problems(connection: object) -> list[str]:
    """Return the problems of a connection's name."""
    if is_airflow_login(connection):
        problem = login_problem(str(connection))
        return [problem] if problem is not None else []
    if not isinstance(connection, str) or not connection or "." in connection:
        return [f"connection is {connection!r}; it must be a name in the setting `connections`, without a dot"]
    return []


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Invalid(
            f"PostgreSQL needs {name.partition('.')[0]}, which is not installed ({error})",
            help=f"install it: {INSTALL}",
            reason="POSTGRES_MISSING",
        ) from error
