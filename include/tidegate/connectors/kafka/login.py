"""The options for connecting to a broker, for librdkafka and for Spark's Java client.

They contain passwords, so they are neither recorded nor shown, and their values are masked in error messages.
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
_SAME_NAME: Final = ("security.protocol", "ssl.key.password")
_PEM_OPTIONS: Final = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Java's options for the text of certificates and keys in PEM. As text, workers do not need the files."""
_KEYS: Final = ("ssl.key.location", "ssl.key.pem")
_PKCS8: Final = re.compile("-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")
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
    def resolve(servers: str | None, connection: str | None, place: Place) -> KafkaLogin:
        """Return the options of a connection. `servers`, if declared, replaces those of the connection."""
        options = place.connection(connection) if connection is not None else {}
        registry = options.pop(REGISTRY_LOGIN, None)
        if servers is not None:
            options[SERVERS] = servers
        if not options.get(SERVERS):
            if is_airflow_login(connection):
                help = f'in Airflow, set its host, or "{SERVERS}" in its extra'
            else:
                help = f'add "{SERVERS}" = "host:9092" to [connections.{connection}]'
            raise Invalid(
                f"connection {connection!r} names no brokers",
                expected=f"the option {SERVERS} in it, or the argument servers",
                help=help,
                reason="NO_SERVERS",
            )
        return KafkaLogin(options, registry)

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return self.options[SERVERS]

    def shared_uri(self, topic: str) -> str:
        """Return the topic's address as other tools write it, with the first broker."""
        broker = self.servers.partition(",")[0].strip().rpartition("://")[2]
        if ":" not in broker:
            broker = f"{broker}:9092"
        return f"kafka://{broker}/{topic}"

    def masked(self, text: str) -> str:
        """Return the text with the values of options masked that may be secret."""
        secrets = [value for key, value in self.options.items() if key not in _HARMLESS and len(value) > 1]
        for value in sorted(secrets, key=len, reverse=True):
            text = text.replace(value, MASK)
        return without_logins(text)

    def for_java(self) -> dict[str, str]:
        """Return the equivalent options of Kafka's Java client.

        Raise Invalid if a security option has no equivalent: reading would use another login than planning did.
        """
        java_options = {SERVERS: self.servers}
        mechanism = self.options.get("sasl.mechanism") or self.options.get("sasl.mechanisms")
        for name, value in self.options.items():
            if name in _SAME_NAME:
                java_options[name] = value
            elif name in _PEM_OPTIONS:
                text = value if name.endswith(".pem") else _text_of(name, value)
                if name in _KEYS and not _PKCS8.search(text):
                    raise self._unfit(f"the key in {name} is not in PKCS#8, the only format that Spark's client reads")
                java_options[_PEM_OPTIONS[name]] = text
            elif name == "ssl.endpoint.identification.algorithm":
                java_options[name] = "" if value == "none" else value
            elif name.startswith(_SECURITY) and name not in _LOGIN:
                raise self._unfit(f"option {name!r} has no equivalent in Spark's Kafka client")
        if "ssl.truststore.certificates" in java_options:
            java_options["ssl.truststore.type"] = "PEM"
        if "ssl.keystore.key" in java_options:
            java_options["ssl.keystore.type"] = "PEM"
        if mechanism is not None:
            if mechanism not in _MODULES:
                raise self._unfit(f"sasl.mechanism is {mechanism!r}")
            user = _in_quotes(self.options.get("sasl.username", ""))
            password = _in_quotes(self.options.get("sasl.password", ""))
            java_options["sasl.mechanism"] = mechanism
            java_options["sasl.jaas.config"] = f"{_MODULES[mechanism]} required username={user} password={password};"
        return java_options

    def _unfit(self, problem: str) -> Invalid:
        return Invalid(
            f"connection to {self.servers}: {problem}",
            expected=f"the mechanisms {', '.join(_MODULES)}; for TLS, certificates and keys in PEM "
            "(ssl.ca.location, ssl.certificate.location, ssl.key.location), with the key in PKCS#8",
            help="use a login that both tidegate and Spark support. `openssl pkcs8 -topk8` converts a key",
            reason="BAD_OPTION",
        )


def _text_of(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{name} of a connection cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}",
            expected="the path of a file in PEM that this process may read",
            help=f"correct {name}",
            reason="BAD_OPTION",
        ) from None


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
