"""Connect to the database that a setting names, and tell what its errors mean.

The options of a connection are libpq's own (`host`, `port`, `dbname`, `user`, `password`, `sslmode` …). They may hold
secrets, so no error, record or page shows them, and what a driver says is shown only with their values masked.
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
"""A machine that is gone is noticed within a minute; the system's own limit is two hours."""

_SHOWN: Final = frozenset({"host", "hostaddr", "port", "dbname", "user", "sslmode", "target_session_attrs", *_DEFAULTS})
"""Options whose values may be shown."""

_LOGIN: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role \".*\" does not exist|is not permitted to "
    r"log in|permission denied for database|certificate|SSL was required|does not support SSL",
    re.I,
)
_NO_DATABASE: Final = re.compile(r"database \".*\" does not exist", re.I)
_BAD_OPTION: Final = re.compile(r"invalid connection option|invalid .* value|invalid port number|invalid integer", re.I)

_TRY_AGAIN: Final = ("08", "40", "53", "57", "58", "55P03", "55006", "25P03", "25006")
"""Beginnings of SQLSTATE codes: connection, conflicts, resources, shut-down, system, locks, timeouts, a standby."""


@dataclass(frozen=True)
class Database:
    """The database that the setting `connections` names."""

    connection: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, place: Place, connection: str) -> Database:
        """Look the connection up. Raise Invalid if there is none of this name."""
        return cls(connection, _DEFAULTS | place.connection(connection))

    def shared_uri(self, table: TableName) -> str | None:
        """Return the table's address as others write it. None: the options do not say which server or database."""
        host, port = (self.options.get(name, "").split(",")[0] for name in ("host", "port"))
        database = self.options.get("dbname")
        if not host or host.startswith(("/", "@")) or not database:
            return None
        return f"postgres://{host}:{port or 5432}/{database}/{table.schema}/{table.name}"

    @contextlib.contextmanager
    def session(self, doing: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Open a session for short questions, each committed by itself. doing: what for, for errors."""
        psycopg = _module("psycopg")
        with (
            self.explained(doing),
            psycopg.connect(self._conninfo(), autocommit=True, prepare_threshold=None) as connection,
        ):
            yield connection

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[tuple[Any, Any]]:
        """Open a transaction for many rows. Yield a connection of ADBC, which copies Arrow in binary form, and a cursor
        of it. Nothing counts unless the caller commits."""
        dbapi = _module("adbc_driver_postgresql.dbapi")
        with self.explained(doing), dbapi.connect(self._conninfo()) as connection, connection.cursor() as cursor:
            yield connection, cursor

    @contextlib.contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Raise what a driver raises as an error that says what to do."""
        drivers = (_module("psycopg").Error, _module("adbc_driver_manager").Error)
        try:
            yield
        except drivers as error:
            raise self._explain(error, doing) from None  # what a driver says may hold secrets

    def _conninfo(self) -> str:
        psycopg = _module("psycopg")
        try:
            return str(psycopg.conninfo.make_conninfo("", **self.options))
        except psycopg.Error as error:
            raise self._explain(error, "reading its options") from None

    def _explain(self, error: Exception, doing: str) -> TidegateError:
        said, code = self._masked(str(error)), getattr(error, "sqlstate", None) or ""
        plain = _without_values(said, code, _diagnosis(error))
        refusal = self._refusal(f"connection {self.connection!r}: {doing} failed: {plain}", said, code)
        refusal.quoted = said if plain != said else ""
        return refusal

    def _refusal(self, what: str, said: str, code: str) -> TidegateError:
        if code.startswith(_TRY_AGAIN):
            return Unavailable(
                what,
                help="nothing is lost: the next attempt tries again",
                reason="DATABASE_BUSY" if code[:2] in "5540" else "",
            )
        if code.startswith("28") or (not code and _LOGIN.search(said)):
            return Invalid(
                what,
                expected="a user who may log in",
                help=f"correct user, password and sslmode in {where_login_is(self.connection)}, or the "
                "server's pg_hba.conf",
                reason="BAD_LOGIN",
            )
        if code == "3D000" or (not code and _NO_DATABASE.search(said)):
            return Invalid(
                what,
                expected="a database of this name",
                help=f"create it, or correct dbname in {where_login_is(self.connection)}",
                reason="NO_DATABASE",
            )
        if not code and _BAD_OPTION.search(said):
            return Invalid(
                what,
                expected="options of libpq: host, port, dbname, user, password, sslmode …",
                help=f"correct {where_login_is(self.connection)}",
                reason="BAD_CONNECTION",
            )
        if code == "42501":
            return Invalid(
                what,
                expected="the rights that docs/guides/postgres.md lists",
                help="let an owner grant them to the user of this connection",
                reason="NO_RIGHTS",
            )
        if code == "3F000":
            return Invalid(what, help="create the schema, or name another one", reason="NO_SCHEMA")
        if not code:
            return Unavailable(
                what,
                help="is the server running, and reachable from here? Nothing is lost: the next attempt tries again",
                reason="DATABASE_AWAY",
            )
        return Invalid(
            what,
            expected="a database that accepts the statement",
            help="change what refuses it (a constraint, a trigger, a type); then run again: nothing was written",
            reason="DATABASE_REFUSES",
        )

    def _masked(self, text: str) -> str:
        """Return the first line of what a driver says: no data of rows, which follows, and no secret."""
        text = re.sub(r"^[A-Z_]+: (\[libpq\] )?", "", text.strip())
        line = re.sub(r"Query was: .*", "", text.split("\n")[0]).strip()
        for name, value in self.options.items():
            if name not in _SHOWN and value:
                line = line.replace(value, MASK)
        return without_logins(line)


_QUOTES = re.compile("[\"'»«„“”‹›‘’「『]")
"""What PostgreSQL begins a quotation with, in its languages."""


_RAISED: Final = re.compile(r"\A[^\n]*(\bRAISE\b|PL/(?!pgSQL))")
"""The first line of a context if a function's author has written the text."""
_NAMED: Final = ("constraint_name", "column_name", "datatype_name", "table_name")
"""What PostgreSQL names if one of its own constraints refuses a row. Its text has only such names, too."""


def _diagnosis(error: Exception) -> Mapping[str, str]:
    """Return what an error says in parts, as psycopg or ADBC has it: by names in small letters."""
    diag = getattr(error, "diag", None)
    if diag is not None:
        return {name: text for name in ("context", *_NAMED) if (text := getattr(diag, name, None))}
    details = getattr(error, "details", None) or ()
    return {
        str(name, "ascii").removeprefix("PG_DIAG_").lower() if isinstance(name, bytes) else str(name): (
            text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        )
        for name, text in details
    }


def _without_values(said: str, code: str, parts: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what PostgreSQL says without what may be a value of a row: errors about data quote it, and functions and
    triggers say what their authors like, with any code.

    parts: what the error says in parts.
    """
    if code.startswith("P0") or _RAISED.search(parts.get("context", "")):
        return "a function or trigger refuses it"
    if code.startswith(("23", "44")) and not any(parts.get(name) for name in _NAMED):
        return "a constraint, function or trigger refuses it"
    if code.startswith("22"):
        return _QUOTES.split(said, maxsplit=1)[0].rstrip(" :") + ("…" if _QUOTES.search(said) else "")
    return said


def connection_problems(connection: object) -> list[str]:
    """Return the problems of the name of a connection."""
    if is_airflow_login(connection):
        problem = login_problem(str(connection))
        return [problem] if problem is not None else []
    if not isinstance(connection, str) or not connection or "." in connection:
        return [f"connection is {connection!r}; it must be a name of the setting `connections`, without a dot"]
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
