"""Logins that are stored among Airflow's Connections, under the name `airflow:ID`.

A login is looked up where it is used: in Airflow by Airflow itself (its secrets backends, its environment, its
database), elsewhere in the environment variables that Airflow reads, AIRFLOW_CONN_ID. It is never recorded or shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tidegate.errors import Invalid, Unavailable

__all__ = [
    "AirflowConnection",
    "StorageLogin",
    "_ask_airflow_with",
    "connection_id",
    "connector_options",
    "is_airflow_login",
    "login_problem",
    "login_variable",
    "login_variables",
    "no_connection",
    "variables_of",
    "where_login_is",
]

PREFIX: Final = "airflow:"
_EXTRA: Final = "__extra__"
"""The part of a URI's query in which Airflow writes an extra that is not a flat table."""
_PROTOCOL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOOK_OPTIONS: Final = frozenset(
    {
        "aws_conn_id",
        "azure_conn_id",
        "cluster-identifier",
        "cursor",
        "enable_log_db_messages",
        "iam",
        "redshift",
        "sqlalchemy_query",
        "sqlalchemy_scheme",
        "workgroup-name",
    }
)
"""Extras that only Airflow's PostgreSQL hook uses. libpq does not know them."""
_UNSUPPORTED_LOGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "aws": ("role_arn", "profile_name"),
    "wasb": ("connection_string",),
    "adls": ("connection_string",),
    "google_cloud_platform": ("key_secret_name", "credential_config_file", "impersonation_chain"),
}
"""Extras with which Airflow's hooks log in to stores, and tidegate cannot. No other login may be used instead."""


@dataclass(frozen=True)
class AirflowConnection:
    """One connection of Airflow."""

    id: str
    kind: str
    """Airflow's connection type, such as postgres, kafka, aws, wasb, google_cloud_platform or generic."""
    host: str = ""
    port: str = ""
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_airflow(cls, id: str, connection: Any) -> AirflowConnection:
        """Return a connection from Airflow's own object."""
        try:
            extra = json.loads(connection.extra or "{}")
        except ValueError:
            extra = None
        if not isinstance(extra, Mapping):  # ignoring it might log in as another user
            raise Invalid(
                f"the extra of Airflow's connection {id!r} cannot be read",
                expected='a JSON object such as {"region_name": "eu-west-1"}',
                help="correct it: Admin → Connections, or in Airflow's secrets backend",
                reason="BAD_AIRFLOW_CONNECTION",
            )
        return cls(
            id,
            _kind(connection.conn_type or ""),
            host=connection.host or "",
            port=str(connection.port or ""),
            login=connection.login or "",
            password=connection.password or "",
            schema=connection.schema or "",
            extra=extra,
        )

    @classmethod
    def parsed(cls, id: str, text: str) -> AirflowConnection:
        """Return the connection in an environment variable, as JSON or as a URI."""
        try:
            is_json = text.lstrip().startswith("{")
            if is_json:
                connection = cls._of_json(id, json.loads(text))
            else:
                connection = cls._of_uri(id, text)
            if not isinstance(connection.extra, Mapping):
                raise ValueError
            return connection
        except (ValueError, TypeError, LookupError, AttributeError):
            raise Invalid(
                f"the environment variable {login_variable(id)} cannot be read",
                expected='a JSON object such as {"conn_type": "postgres", "host": "…", "login": "…", "password": "…"}, '
                "or a URI such as postgres://user:password@host:5432/database",
                help="correct it: `airflow connections export --file-format env -` writes connections in this form",
                reason="BAD_AIRFLOW_CONNECTION",
            ) from None  # the text is secret

    @classmethod
    def _of_json(cls, id: str, document: Mapping[str, Any]) -> AirflowConnection:
        extra = document.get("extra") or {}
        if isinstance(extra, str):
            extra = json.loads(extra)
        texts = {}
        for name in ("host", "port", "login", "password", "schema"):
            texts[name] = str(document.get(name) or "")
        return cls(id, _kind(document["conn_type"]), **texts, extra=extra)

    @classmethod
    def _of_uri(cls, id: str, uri: str) -> AirflowConnection:
        scheme, _, rest = uri.partition("://")
        match = _PROTOCOL.match(rest)  # the host may have one, such as https://lake.blob.core.windows.net
        protocol = match[0] if match is not None else ""
        rest = rest.removeprefix(protocol)
        parts = urlsplit(f"{scheme}://{rest}")
        if not parts.scheme:
            raise ValueError
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(
            id,
            _kind(parts.scheme),
            host=protocol + unquote(parts.hostname or ""),
            port=str(parts.port or ""),
            login=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            schema=unquote(parts.path[1:]),
            extra=json.loads(query[_EXTRA]) if _EXTRA in query else query,
        )

    @property
    def as_variable(self) -> str:
        """The value of an environment variable that holds it."""
        texts = {"conn_type": self.kind or "generic", "host": self.host, "port": self.port, "login": self.login}
        texts |= {"password": self.password, "schema": self.schema}
        return json.dumps({name: text for name, text in texts.items() if text} | {"extra": dict(self.extra)})

    def options(self) -> dict[str, str]:
        """Return the options with which a connector logs in: those of libpq or librdkafka, otherwise the extra's."""
        if self.kind in _STORES:
            raise self._unfit("a login to a store", "one of the type kafka, postgres or generic")
        if self.kind == "postgres":
            return self._of_postgres()
        if self.kind == "kafka":
            return self._of_kafka()
        return self._extras()

    def storage_options(self) -> dict[str, str]:
        """Return the options with which obstore and delta-rs log in to a store."""
        if self.kind in ("kafka", "postgres"):
            raise self._unfit(
                "not a login to a store", "one of the type aws, wasb, adls, google_cloud_platform or generic"
            )
        for name in _UNSUPPORTED_LOGINS.get(self.kind, ()):
            if self.text(name):
                raise self._unfit(
                    f"a login by {name}, which tidegate does not support",
                    "a login or key; or neither, to use the machine's own login",
                )
        read_options = _STORES.get(self.kind)
        if read_options is not None:
            return read_options(self)
        return self._extras()

    def text(self, *names: str) -> str:
        """Return the first of these extras that is set, as text, or ""."""
        extras = self._extras()
        for name in names:
            if extras.get(name):
                return extras[name]
        return ""

    def _extras(self) -> dict[str, str]:
        """Return the extra as texts. Forms of older providers prefix its names."""
        old_prefix = f"extra__{self.kind}__"
        texts = {}
        for name, value in self.extra.items():
            if isinstance(value, bool):
                texts[name.removeprefix(old_prefix)] = str(value).lower()
            elif isinstance(value, Mapping | list):
                texts[name.removeprefix(old_prefix)] = json.dumps(value)
            elif value is not None:
                texts[name.removeprefix(old_prefix)] = str(value)
        return texts

    def _of_postgres(self) -> dict[str, str]:
        if self.extra.get("iam"):
            raise self._unfit("a login by IAM, which tidegate does not support", "one with a password or certificate")
        options = _without_empty(
            host=self.host, port=self.port, user=self.login, password=self.password, dbname=self.schema
        )
        return options | {name: text for name, text in self._extras().items() if name not in _HOOK_OPTIONS}

    def _of_kafka(self) -> dict[str, str]:
        hosts = [host.strip() for host in self.host.split(",") if host.strip()]
        servers = []
        for host in hosts:
            if ":" in host:
                servers.append(host)
            else:
                servers.append(f"{host}:{self.port or 9092}")
        options = {"bootstrap.servers": ",".join(servers), "sasl.username": self.login, "sasl.password": self.password}
        extras = {name: text for name, text in self._extras().items() if not name.endswith("_cb")}
        return _without_empty(**options) | extras

    def _of_aws(self) -> dict[str, str]:
        services = self.extra.get("service_config")
        s3_config = services.get("s3") if isinstance(services, Mapping) else None
        endpoint = str((s3_config or {}).get("endpoint_url") or "") or self.text("endpoint_url", "host")
        return _without_empty(
            aws_access_key_id=self.login or self.text("aws_access_key_id"),
            aws_secret_access_key=self.password or self.text("aws_secret_access_key"),
            aws_session_token=self.text("aws_session_token"),
            aws_region=self.text("region_name"),
            aws_endpoint=endpoint,
            aws_allow_http="true" if endpoint.startswith("http://") else "",
        )

    def _of_azure(self) -> dict[str, str]:
        account = self.host.removeprefix("https://").partition(".")[0]
        if tenant := self.text("tenant_id"):
            return _without_empty(
                azure_account_name=account,
                azure_client_id=self.login,
                azure_client_secret=self.password,
                azure_tenant_id=tenant,
            )
        return _without_empty(
            azure_account_name=self.login or account,
            azure_account_key=self.password or self.text("account_key"),
            azure_sas_token=self.text("sas_token"),
        )

    def _of_google(self) -> dict[str, str]:
        return _without_empty(
            google_service_account=self.text("key_path"), google_service_account_key=self.text("keyfile_dict")
        )

    def _unfit(self, what: str, expected: str) -> Invalid:
        return Invalid(
            f"Airflow's connection {self.id!r}, of the type {self.kind!r}, is {what}",
            expected=expected,
            help="name another connection of Airflow, or write the login into the settings: `connections` for "
            "connectors, `storage_options` for stores",
            reason="BAD_AIRFLOW_CONNECTION",
        )


_STORES: Final[Mapping[str, Callable[[AirflowConnection], dict[str, str]]]] = {
    "aws": AirflowConnection._of_aws,
    "wasb": AirflowConnection._of_azure,
    "adls": AirflowConnection._of_azure,
    "google_cloud_platform": AirflowConnection._of_google,
}


def _without_empty(**texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}


def _kind(conn_type: str) -> str:
    kind = conn_type.lower().replace("-", "_")
    return "postgres" if kind == "postgresql" else kind


# -- lookups ---------------------------------------------------------------------------------------------


_ask: Callable[[str], Any] | None = None


def _ask_airflow_with(ask: Callable[[str], Any]) -> None:
    """Let this process, which is a part of Airflow, look up connections with `ask`. It returns None for an unknown
    one."""
    global _ask
    _ask = ask


def is_airflow_login(name: object) -> bool:
    """Return whether this names one of Airflow's connections."""
    return isinstance(name, str) and name.startswith(PREFIX)


def connection_id(name: str) -> str:
    """Return Airflow's own name of the connection."""
    return name.removeprefix(PREFIX)


def where_login_is(name: str) -> str:
    """Return the place of a connection's options, for error messages."""
    if is_airflow_login(name):
        return f"Airflow's connection {connection_id(name)!r}"
    return f"the setting connections.{name}"


def login_problem(name: str) -> str | None:
    """Return the problem with the name of a login in Airflow, or None."""
    id = connection_id(name)
    if not id or len(id) > 250 or id != id.strip() or not id.isprintable():
        return f"{name!r} is not the name of an Airflow connection; write airflow:ID"
    return None


def login_variable(id: str) -> str:
    """Return the environment variable in which Airflow looks for a connection."""
    return f"AIRFLOW_CONN_{id.upper()}"


def look_up(name: str) -> AirflowConnection:
    """Return the connection of Airflow that `airflow:ID` names. Raise Unavailable if Airflow does not find it, Invalid
    if this process is not a part of Airflow and the environment does not have it."""
    id = connection_id(name)
    if _ask is not None:
        connection = _ask(id)
        if connection is None:
            raise no_connection(id)
        return AirflowConnection.from_airflow(id, connection)
    text = os.environ.get(login_variable(id))
    if text is None:
        raise Invalid(
            f"the login {name!r} cannot be looked up: this process is not a part of Airflow, and the environment "
            f"variable {login_variable(id)} is not set",
            expected=f"{login_variable(id)} as Airflow reads it: a JSON object or a URI",
            help=_how_to_set(login_variable(id)),
            reason="NO_AIRFLOW_CONNECTION",
        )
    return AirflowConnection.parsed(id, text)


def _how_to_set(variable: str) -> str:
    """Return the help about a variable that is not set. Shells cannot export a name with a - or a dot."""
    assignment = f'{variable}=\'{{"conn_type": "…", "host": "…", "login": "…", "password": "…"}}\''
    if not (variable.isascii() and variable.isidentifier()):
        assignment = f"`env {assignment} tidegate …`, as no shell exports this name"
    return f"set it, such as {assignment}; or run this in a task of Airflow, which asks Airflow"


def no_connection(id: str) -> Unavailable:
    """Return the error for a connection that Airflow does not find. It may pass, because Airflow finds no connection
    while its server does not answer."""
    return Unavailable(
        f"Airflow has no connection {id!r}",
        expected="a connection of this name in its database, its environment or its secrets backend",
        help=f"add it (Admin → Connections, or `airflow connections add {id} …`), or correct the name; it is looked up "
        "again by the next try",
        reason="NO_AIRFLOW_CONNECTION",
    )


def connector_options(name: str) -> dict[str, str]:
    """Return the options of a connector whose login is in Airflow."""
    return look_up(name).options()


def login_variables(names: list[str]) -> dict[str, str]:
    """Return the environment with which a process outside of Airflow can log in by these names."""
    return variables_of(map(look_up, names))


def variables_of(connections: Iterable[AirflowConnection]) -> dict[str, str]:
    """Return the environment variables by which a process outside of Airflow finds these connections."""
    variables: dict[str, str] = {}
    for connection in connections:
        variable = login_variable(connection.id)
        if variables.setdefault(variable, connection.as_variable) != connection.as_variable:
            raise Invalid(
                f"two connections of Airflow are both {variable} outside of it: their names differ in case only",
                expected="names that differ in more than upper and lower case",
                help=f"rename {connection.id!r} or the other one in Airflow and in the pipeline",
                reason="BAD_AIRFLOW_CONNECTION",
            )
    return variables


class StorageLogin(Mapping[str, str]):
    """Storage options whose login is in Airflow. The login is looked up once, when an option is first read."""

    def __init__(self, name: str, given: Mapping[str, str]) -> None:
        self.name = name
        self.given = given
        """The options in the settings, which override those of the login."""

    @cached_property
    def _all(self) -> dict[str, str]:
        return self.options_with_login(look_up(self.name))

    def options_with_login(self, connection: AirflowConnection) -> dict[str, str]:
        """Return all options, with the login of this connection."""
        return {**connection.storage_options(), **self.given}

    def __getitem__(self, name: str) -> str:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StorageLogin):
            return (self.name, dict(self.given)) == (other.name, dict(other.given))
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as any mapping

    def __repr__(self) -> str:
        return f"StorageLogin({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all,)  # for workers, which cannot look it up
