"""Asks a schema registry, over HTTP."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote

from tidegate import seams
from tidegate.connectors.kafka.avro.values import Undecodable
from tidegate.errors import Invalid, Unavailable

__all__ = ["Registry", "import_fastavro"]

_TRIES: Final = 3
_TIMEOUT_S: Final = 10.0
_ABSENT: Final = (40401, 40402, 40403)
"""Error codes: there is no such subject, version or schema. Other 404s are not a registry's."""


def import_fastavro() -> Any:
    """Return the module fastavro."""
    try:
        import fastavro
    except ImportError:
        raise Invalid(
            "fastavro, with which tidegate reads Avro, is not installed",
            help="pip install 'tidegate[avro]'",
            reason="NO_AVRO",
        ) from None
    return fastavro


class Registry:
    """Looks up schemas in a schema registry, each only once, and registers new ones."""

    def __init__(self, url: str, login: str | None) -> None:
        self._url = url.rstrip("/")
        self._login = login
        self._schemas: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return a parsed schema. Raise Undecodable if there is none, Unavailable if the registry does not answer."""
        if number not in self._schemas:
            self._schemas[number] = self._request_schema(number)
        return self._schemas[number]

    def _request_schema(self, number: int) -> Any:
        answer = self._ask(f"schemas/ids/{number}")
        if answer is None:
            raise Undecodable(f"the registry has no schema {number}")
        if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
            raise Undecodable(f"schema {number} of the registry is not in Avro, or refers to other schemas")
        return import_fastavro().parse_schema(json.loads(answer["schema"]))

    def refuse_incompatible(self, subject: str, schema: str, sink: str) -> None:
        """Raise Invalid if a subject does not take this schema as its next version."""
        name = quote(subject, safe="")
        if self._ask(f"subjects/{name}", {"schema": schema}, subject, sink) is not None:
            return  # it is a version: to register it again changes nothing, so nothing compares it
        # The registry compares it with the latest version, or with all if the subject's compatibility is transitive.
        path = f"compatibility/subjects/{name}/versions?verbose=true"
        answer = self._ask(path, {"schema": schema}, subject, sink)
        if answer is not None and not answer.get("is_compatible", True):
            raise _incompatible(subject, sink, "; ".join(map(str, answer.get("messages") or ())))

    def register(self, subject: str, schema: str, sink: str) -> int:
        """Return the number of a schema, as a version of this subject. The same schema has the same number."""
        answer = self._ask(f"subjects/{quote(subject, safe='')}/versions", {"schema": schema}, subject, sink)
        assert answer is not None
        return int(answer["id"])

    def _ask(self, path: str, body: Any = None, subject: str = "", sink: str = "") -> Any:
        """Return the registry's answer, or None if what is asked for does not exist.

        body: the content to post. subject, sink: for which subject it is asked, and by which sink.
        """
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
            data = json.dumps(body).encode()
        if self._login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        request = urllib.request.Request(f"{self._url}/{path}", data, headers)
        for attempt in range(_TRIES):
            if attempt:
                seams.sleep(1)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                answer = _read_error(error)
                if error.code == 404 and answer.get("error_code") in _ABSENT:
                    return None
                message = str(answer.get("message", error.reason))
                refusal = self._refusal(error.code, message, path, subject, sink)
                if refusal is not None:
                    raise refusal from None
                cause = f"{error.code} {error.reason}"
            except (OSError, ValueError) as error:
                cause = str(getattr(error, "reason", error))
        raise Unavailable(
            f"the schema registry does not answer: {cause}",
            help="check that it runs, and that Spark's workers can reach it; the next attempt tries again",
            reason="REGISTRY_AWAY",
        )

    def _refusal(self, status: int, message: str, path: str, subject: str, sink: str) -> Invalid | None:
        """Return the error for an answer that will be the same next time, or None if it may be another."""
        if status == 404:
            return Invalid(
                f"there is no schema registry at {self._url}: 404 for /{path.partition('?')[0]}",
                expected="the URL of a schema registry, without the path of a request",
                help="correct registry=…: the address, and the path before /subjects if it has one",
                reason="REGISTRY_URL",
            )
        if status == 409 and subject:
            return _incompatible(subject, sink, message)
        if status == 422 and subject:
            return Invalid(
                f"sink {sink!r}: the schema registry calls the schema for {subject} invalid: {message}",
                expected="a schema of Avro that the registry accepts",
                help="rename or omit the columns of which its message tells, or name another subject=…",
                reason="SCHEMA_REFUSED",
            )
        if status in (401, 403):
            return Invalid(
                f"the schema registry refuses the login: {status} {message}",
                expected="a login that may read schemas, and that may write those of a sink's subject",
                help="correct schema.registry.basic.auth.user.info of the connection",
                reason="REGISTRY_LOGIN",
            )
        return None


def _read_error(error: urllib.error.HTTPError) -> dict[str, Any]:
    """Return the registry's message and error code, or nothing if the answer is not a registry's."""
    try:
        answer = json.loads(error.read())
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _incompatible(subject: str, sink: str, why: str) -> Invalid:
    return Invalid(
        f"sink {sink!r}: the schema registry does not take the columns of this checkpoint for {subject}: {why}",
        expected="columns that are compatible with its versions, as the registry defines this for the subject",
        help="keep the columns and types that its consumers read: select them before the sink; or declare the type "
        "that the latest version has; or read with "
        'on_type="rescue"; or change the compatibility of this subject, or name another one with subject=…',
        reason="SCHEMA_INCOMPATIBLE",
    )
