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
        path = f"compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        answer = self._ask(path, {"schema": schema})
        if answer is not None and not answer.get("is_compatible", True):
            raise _incompatible(subject, sink, "; ".join(map(str, answer.get("messages") or ())))

    def register(self, subject: str, schema: str, sink: str) -> int:
        """Return the number of a schema, as a version of this subject. The same schema has the same number."""
        answer = self._ask(f"subjects/{quote(subject, safe='')}/versions", {"schema": schema}, subject, sink)
        assert answer is not None
        return int(answer["id"])

    def _ask(self, path: str, body: Any = None, subject: str = "", sink: str = "") -> Any:
        """Return the registry's answer, or None if what is asked for does not exist. body: the content to post."""
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
                if error.code == 404 and not subject:
                    return None
                if error.code in (409, 422) and subject:
                    raise _incompatible(subject, sink, _message_of(error)) from None
                if error.code in (401, 403):
                    raise Invalid(
                        f"the schema registry refuses the login: {error.code} {error.reason}",
                        expected="a login that may read schemas, and that may write those of a sink's subject",
                        help="correct schema.registry.basic.auth.user.info of the connection",
                        reason="REGISTRY_LOGIN",
                    ) from None
                cause = f"{error.code} {error.reason}"
            except (OSError, ValueError) as error:
                cause = str(getattr(error, "reason", error))
        raise Unavailable(
            f"the schema registry does not answer: {cause}",
            help="check that it runs, and that Spark's workers can reach it; the next attempt tries again",
            reason="REGISTRY_AWAY",
        )


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _incompatible(subject: str, sink: str, why: str) -> Invalid:
    return Invalid(
        f"sink {sink!r}: the schema registry does not take the columns of this checkpoint for {subject}: {why}",
        expected="columns that are compatible with its latest version, as the registry defines this for the subject",
        help="keep the columns and types that its consumers read: select them before the sink; or read with "
        'on_type="rescue"; or change the compatibility of this subject, or name another one with subject=…',
        reason="SCHEMA_INCOMPATIBLE",
    )
