"""How to reach a broker: librdkafka's options, from the declaration and a connection; and what Spark's client makes
of them.

Options hold passwords: they are neither recorded nor shown, and texts of errors are masked with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.errors import Invalid
from tidegate.records.airflow_login import is_airflow_login
from tidegate.records.masking import MASK, without_logins
from tidegate.records.place import Place

__all__ = ["SERVERS", "KafkaLogin"]

SERVERS: Final = "bootstrap.servers"
REGISTRY_LOGIN: Final = "schema.registry.basic.auth.user.info"

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME: Final = ("security.protocol", "ssl.key.password")
_AS_TEXT: Final = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Certificates and keys in PEM, and Java's names for their text: a worker need not have the files."""
_KEYS: Final = ("ssl.key.location", "ssl.key.pem")
_JAVAS_KEY: Final = re.compile("-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")
_SECURITY: Final = ("sasl.", "ssl.", "security.", "enable.sasl.", "enable.ssl.")
_LOGIN: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_HARMLESS: Final = (SERVERS, "security.protocol", "sasl.mechanism", "sasl.mechanisms")


@dataclass(frozen=True)
class KafkaLogin:
    """The options of one connection."""

    options: Mapping[str, str] = field(repr=False)
    """For librdkafka."""
    registry: str | None = field(default=None, repr=False)
    """`user:password` of the schema registry."""

    @staticmethod
    def of(servers: str | None, connection: str | None, place: Place) -> KafkaLogin:
        """Return the options of a connection, with the servers that are declared beside it."""
        options = place.connection(connection) if connection is not None else {}
        registry = options.pop(REGISTRY_LOGIN, None)
        if servers is not None:
            options[SERVERS] = servers
        if not options.get(SERVERS):
            raise Invalid(
                f"connection {connection!r} names no brokers",
                expected=f"the option {SERVERS} in it, or the argument servers",
                help=f'give it a host, or "{SERVERS}" in its extra, in Airflow'
                if is_airflow_login(connection)
                else f'add "{SERVERS}" = "host:9092" to [connections.{connection}]',
                reason="NO_SERVERS",
            )
        return KafkaLogin(options, registry)

    @property
    def servers(self) -> str:
        """The brokers to ask first."""
        return self.options[SERVERS]

    def shared_uri(self, topic: str) -> str:
        """Return the topic's address as others write it: that of the first broker, and the topic."""
        first = self.servers.partition(",")[0].strip().rpartition("://")[2]
        return f"kafka://{first if ':' in first else f'{first}:9092'}/{topic}"

    def masked(self, text: str) -> str:
        """Return a text without the values of options that may be secret."""
        secrets = [value for key, value in self.options.items() if key not in _HARMLESS and len(value) > 1]
        for value in sorted(secrets, key=len, reverse=True):
            text = text.replace(value, MASK)
        return without_logins(text)

    def for_java(self) -> dict[str, str]:
        """Return the same options as Java's client takes them. Raise Invalid for one about security that it cannot
        take: it would reach the broker in another way than the plan did."""
        made = {SERVERS: self.servers}
        mechanism = self.options.get("sasl.mechanism") or self.options.get("sasl.mechanisms")
        for name, value in self.options.items():
            if name in _SAME:
                made[name] = value
            elif name in _AS_TEXT:
                text = value if name.endswith(".pem") else _text_of(name, value)
                if name in _KEYS and not _JAVAS_KEY.search(text):
                    raise self._unfit(f"the key of {name} is not in PKCS#8, the only form that Spark's client reads")
                made[_AS_TEXT[name]] = text
            elif name == "ssl.endpoint.identification.algorithm":
                made[name] = "" if value == "none" else value
            elif name.startswith(_SECURITY) and name not in _LOGIN:
                raise self._unfit(f"option {name!r} has no counterpart in Spark's client of Kafka")
        if "ssl.truststore.certificates" in made:
            made["ssl.truststore.type"] = "PEM"
        if "ssl.keystore.key" in made:
            made["ssl.keystore.type"] = "PEM"
        if mechanism is not None:
            if mechanism not in _MODULES:
                raise self._unfit(f"sasl.mechanism is {mechanism!r}")
            user, password = (_in_quotes(self.options.get(f"sasl.{part}", "")) for part in ("username", "password"))
            made["sasl.mechanism"] = mechanism
            made["sasl.jaas.config"] = f"{_MODULES[mechanism]} required username={user} password={password};"
        return made

    def _unfit(self, what: str) -> Invalid:
        return Invalid(
            f"connection to {self.servers}: {what}",
            expected=f"logins by {', '.join(_MODULES)}; of TLS, certificates and keys in PEM, by ssl.ca.location, "
            "ssl.certificate.location and ssl.key.location, the key in PKCS#8",
            help="log in in one of these ways: both tidegate and Spark must be able to. `openssl pkcs8 -topk8` "
            "converts a key",
            reason="BAD_OPTION",
        )


def _text_of(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{name} of a connection cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}",
            expected="the path of a file in PEM that this process may read",
            help=f"correct {name}",
            reason="BAD_OPTION",
        ) from None


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
