"""Mask secrets in settings and texts, because every user who may view a DAG can read its plans, pages and docs.

A value is shown only if its key is known to be harmless, never because its key does not sound like a secret: no list of
secret names is complete. Logins inside texts (addresses, quotes in errors) are masked before a text is recorded.
"""

from __future__ import annotations

import re

__all__ = ["MASK", "has_login", "is_harmless", "without_logins"]

MASK = "***"

_HARMLESS = (
    "spark.app.name",
    "spark.broadcast.",
    "spark.cleaner.",
    "spark.cores.max",
    "spark.databricks.delta.",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memoryOverhead",
    "spark.dynamicAllocation.",
    "spark.eventLog.enabled",
    "spark.executor.cores",
    "spark.executor.heartbeatInterval",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.hadoop.fs.s3a.connection.",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.endpoint.region",
    "spark.hadoop.fs.s3a.path.style.access",
    "spark.io.compression.",
    "spark.kryoserializer.buffer",
    "spark.kryoserializer.buffer.max",
    "spark.locality.",
    "spark.memory.",
    "spark.network.timeout",
    "spark.rdd.compress",
    "spark.rpc.askTimeout",
    "spark.rpc.message.maxSize",
    "spark.scheduler.",
    "spark.serializer",
    "spark.shuffle.",
    "spark.speculation",
    "spark.speculation.",
    "spark.sql.adaptive.",
    "spark.sql.ansi.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.caseSensitive",
    "spark.sql.codegen.",
    "spark.sql.execution.arrow.",
    "spark.sql.extensions",
    "spark.sql.files.",
    "spark.sql.join.",
    "spark.sql.legacy.",
    "spark.sql.maxPlanStringLength",
    "spark.sql.optimizer.",
    "spark.sql.orc.",
    "spark.sql.parquet.",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.",
    "spark.sql.sources.",
    "spark.sql.statistics.",
    "spark.stage.",
    "spark.task.",
    "spark.ui.enabled",
    "spark.ui.port",
)
"""Spark settings whose values reveal only how it runs. A trailing dot includes all settings with this prefix."""
_EXACT = frozenset(name for name in _HARMLESS if not name.endswith("."))
_GROUPS = tuple(name for name in _HARMLESS if name.endswith("."))

_SECRET = r"secret|passw|pwd|token|credential|(?:access|account|api|private|encryption|auth)[._-]?key|authorization"
_SOUNDS_SECRET = re.compile(rf"{_SECRET}|storage|auth|crypt|key", re.I)

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s\"'<>]*)", re.I)
_PART = re.compile(r"(?<=[?&;])([\w.%~-]+)=([^&;#]+)")
_PLAIN_PARTS = frozenset({"use_ssl", "user_id", "session_id", "region", "versionid"})
_STORE = re.compile(r"(abfss?|wasbs?)\Z", re.I)
_NAMED = re.compile(rf"([\w.-]*(?:{_SECRET}|\b(?:sas|sig)\b)[\w.-]*)=(\"[^\"]*\"|'[^']*'|[^\s&;,\"')\]}}]+)", re.I)
_QUOTED = re.compile(rf"([\"'][\w.-]*(?:{_SECRET}|\b(?:sas|sig)\b)[\w.-]*[\"']\s*:\s*)(\"[^\"]*\"|'[^']*')", re.I)
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I)


def is_harmless(name: str) -> bool:
    """Return whether the value of this setting of Spark may be shown."""
    return (name in _EXACT or name.startswith(_GROUPS)) and not _SOUNDS_SECRET.search(name)


def has_login(url: str) -> bool:
    """Return whether an address contains a login."""
    return _ADDRESS.sub(_mask_address, url) != url


def without_logins(text: str) -> str:
    """Return the text with logins masked, in addresses, pairs and headers."""
    text = _ADDRESS.sub(_mask_address, text)
    text = _NAMED.sub(rf"\1={MASK}", text)
    text = _QUOTED.sub(rf'\1"{MASK}"', text)
    return _BEARER.sub(rf"\1 {MASK}", text)


def _mask_address(match: re.Match[str]) -> str:
    scheme, target = match[1], match[2]
    if _ADDRESS.match(target):  # k8s://https://…
        return f"{scheme}://{_ADDRESS.sub(_mask_address, target)}"
    at_sign = target.rfind("@")
    login = target[: at_sign + 1]
    container = _STORE.fullmatch(scheme) and ":" not in login  # container@account is a place, not a login
    if at_sign >= 0 and "/" not in login.split(":")[0] and not container:
        target = f"{MASK}@{target[at_sign + 1 :]}"
    return f"{scheme}://{_PART.sub(_mask_parameter, target)}"


def _mask_parameter(match: re.Match[str]) -> str:
    if match[1].lower() in _PLAIN_PARTS:
        return match[0]
    return f"{match[1]}={MASK}"
