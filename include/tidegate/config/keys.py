"""The settings: the accepted values of each, as text for messages and as a parser.

A duration is a number of seconds, or a number with one unit: 30, "90 s", "10 min", "1 h", "1 day".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import Invalid
from tidegate.records.airflow_login import is_airflow_login, login_problem
from tidegate.records.masking import has_login
from tidegate.records.names import check_name
from tidegate.records.place import is_url

__all__ = [
    "DESCRIPTIONS",
    "DRIVER_MEMORY",
    "ENV_PREFIX",
    "EVENT",
    "JOB_OPTIONS",
    "KEYS",
    "MODES",
    "RETENTIONS",
    "InvalidValue",
    "Key",
    "duration_text",
    "parse_entry",
    "seconds_in",
]

ENV_PREFIX = "TIDEGATE_"

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_UNIT_NAMES = {"sec": "s", "second": "s", "seconds": "s", "minute": "min", "minutes": "min"}
_UNIT_NAMES |= {"hour": "h", "hours": "h", "d": "day", "days": "day"}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]*)")
_MAX_DURATION_S = 366 * UNITS["day"]
_MEMORY = re.compile(r"([0-9]{1,6})([mgt])b?")
_MASTER = re.compile(r"local|local\[(\*|[1-9][0-9]{0,3})(,\s*[1-9][0-9]{0,3})?\]|yarn|(spark|k8s)://[^\s@]+")


class InvalidValue(ValueError):
    """A value that its key does not accept. The text says why, if the allowed range does not."""


@dataclass(frozen=True)
class Key:
    """One setting, with its accepted values as text and as a parser."""

    name: str
    default: object
    expected: str
    parse: Callable[[object], Any]
    table: bool = False
    secret: bool = False

    @property
    def description(self) -> str:
        """Its effect, in one sentence."""
        return DESCRIPTIONS[self.name]

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper().replace(".", "_")


# -- parsers -------------------------------------------------------------------------------------------


EVENT = "event"
"""As `interval`: checkpoints are made when input arrives."""


def _duration(shortest: float, never: bool = False, event: bool = False) -> Callable[[object], float | str | None]:
    def parse(value: object) -> float | str | None:
        if never and value == "never":
            return None
        if event and value == EVENT:
            return EVENT
        seconds = _seconds(value)
        if not shortest <= seconds <= _MAX_DURATION_S:
            raise InvalidValue
        return seconds

    return parse


def _seconds(value: object) -> float:
    """Parse 30, 1.5, "30", "90 s" or "10 min" into seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = None
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip().lower())
    if not match:
        raise InvalidValue
    unit = _UNIT_NAMES.get(match[2], match[2]) or "s"
    if unit not in UNITS:
        raise InvalidValue(f"{match[2]!r} is not a unit; the units are {', '.join(UNITS)}")
    return float(match[1]) * UNITS[unit]


def seconds_in(value: object) -> float:
    """Return the seconds in a duration as users write it, such as "10 min". Otherwise raise InvalidValue."""
    return _seconds(value)


def duration_text(seconds: float | None) -> str:
    """Write seconds in the form that settings accept: "10 min", "90 s", "never"."""
    if seconds is None:
        return "never"
    for unit in ("day", "h", "min"):
        if seconds and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    return f"{seconds:.15g} s"


def _whole_number(lowest: int, highest: int = 1_000_000) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise InvalidValue
        return value

    return parse


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidValue
    return value


def _folder(value: object) -> str:
    """Accept a path or URL as written; it becomes absolute when all layers are read."""
    path = os.fspath(value) if isinstance(value, Path) else _text(value)
    if is_url(path) and has_login(path):
        raise InvalidValue("a URL must not hold a password or a key; log in with the setting storage_options")
    return path


def _airflow_login(value: object) -> str:
    if not is_airflow_login(_text(value)) or login_problem(str(value)) is not None:
        raise InvalidValue
    return str(value)


def _columns(value: object) -> str:
    """Accept names of columns with commas between them, or nothing."""
    if not isinstance(value, str) or not (value.isprintable() or not value):
        raise InvalidValue
    return ", ".join(filter(None, (name.strip() for name in value.split(","))))


def _truth(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise InvalidValue
    return value


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise InvalidValue
        return str(value)

    return parse


def _gaps(value: object) -> str:
    """Accept also "told", which version 0.2 called "reported"."""
    return _one_of(*GAPS)("reported" if value == "told" else value)


def _remote(value: object) -> str:
    if not _text(value).startswith("sc://") or len(str(value)) < 6:
        raise InvalidValue
    return str(value)


def _master(value: object) -> str:
    if not _MASTER.fullmatch(_text(value)):
        raise InvalidValue
    return str(value)


def _memory(value: object) -> str:
    match = _MEMORY.fullmatch(_text(value).lower())
    if not match or int(match[1]) * {"m": 1, "g": 1 << 10, "t": 1 << 20}[match[2]] < 512:
        raise InvalidValue
    return match[1] + match[2]


def _entry(value: object) -> str:
    """Return one value of a table as the text that Spark and the object stores take."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise InvalidValue("each value must be a text, a number or true/false")
    return str(value)


def _label(value: object) -> str:
    """Accept the name of something in Airflow."""
    text = _text(value)
    if len(text) > MAX_LABEL_LENGTH or text != text.strip():
        raise InvalidValue
    return text


MAX_LABEL_LENGTH = 256
"""The longest name of a pool, a queue or an executor that Airflow's database takes."""

JOB_OPTIONS: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    "pool": ("the name of an Airflow pool", _label),
    "pool_slots": ("a whole number from 1 to 1000000", _whole_number(1)),
    "queue": ("the name of a queue of Airflow's workers", _label),
    "executor": ("the name of one of Airflow's executors", _label),
    "priority_weight": ("a whole number from 0 to 1000000", _whole_number(0)),
}
"""What a job may have of its own in Airflow, each with what it accepts. Beside these it may have settings of Spark."""


def _job_entry(name: str, value: object) -> str:
    """Parse what one job has of its own: jobs.NAME.pool, or jobs.NAME.spark.executor.memory."""
    job, _, option = name.partition(".")
    try:
        check_name("job", job)
    except Invalid as error:
        raise InvalidValue(f"{error.what} ({error.expected})") from None
    if option.startswith("spark.spark."):
        raise InvalidValue(
            f"Spark's key already begins with 'spark.': write jobs.{job}.{option.removeprefix('spark.')}"
        )
    if option.startswith("spark."):
        return _entry(value)
    if option not in JOB_OPTIONS:
        raise InvalidValue(
            f"{option!r} is no option of a job: write {', '.join(JOB_OPTIONS)}, or one of Spark's keys, spark.…"
        )
    expected, parse = JOB_OPTIONS[option]
    try:
        return str(parse(value))
    except InvalidValue:
        raise InvalidValue(f"{option} is {expected}") from None


DRIVER_MEMORY = "spark.driver.memory"
"""For all jobs this is the setting `spark.memory`; a submitted job may have its own."""
_OWNED_CONF = {
    "spark.master": "spark.master",
    "spark.remote": "spark.remote",
    DRIVER_MEMORY: "spark.memory",
}


def parse_entry(key: Key, name: str, value: object) -> str:
    """Parse one entry of a table, and check its name too."""
    if key.name == "spark.conf" and not name.startswith("spark."):
        raise InvalidValue(f"{name!r} does not start with 'spark.'")
    if key.name == "spark.conf" and name in _OWNED_CONF:
        raise InvalidValue(f"tidegate sets {name!r}: use the setting {_OWNED_CONF[name]}")
    if key.name == "connections" and not all(name.partition(".")):
        raise InvalidValue(f"{name!r} is not an option of a connection: write connections.NAME.OPTION")
    if key.name == "jobs":
        return _job_entry(name, value)
    return _entry(value)


MODES = ("exactly_once", "at_least_once")
"""Rows become visible with the decision, each once; or as soon as a job has written them, when some may be duplicated
after a failure, but none is lost."""

RESTARTS = ("exponential", "fixed", "failure_rate", "none")
"""Retries of a failed job under Airflow: after `delay`, twice that and so on up to `max_delay`; after `delay` each
time; as often as the checkpoint's timeout allows, but at most `attempts` times in each `per`; not at all."""

RETENTIONS = ("retain_on_cancellation", "retain_on_failure", "never_retain")
"""Records and states after the end of a pipeline: all are retained, so that it can be resumed; all are retained except
after `cancel`, which is then final; or none, after `cancel` and after a drain. Failures, `suspend` and `stop` retain
all."""

GAPS = ("reported", "expected")
"""Time between the intervals of an interval pipeline that no checkpoint covers: reported, or accepted."""

_SPAN = 'a duration such as 30, "90 s", "10 min", "1 h" or "1 day", from {} to 366 days'
_CONNECTIONS = "a table for each name, with texts, numbers or true/false"
_JOBS = "a table for each job, with its settings of Spark, pool, pool_slots, queue, executor and priority_weight"
_PATH = "a folder (relative paths start from the project folder) or a URL without a password"

KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("mode", "exactly_once", '"exactly_once" or "at_least_once"', _one_of(*MODES)),
        Key("interval", "5 min", _SPAN.format("1 s") + ', or "event" or "never"', _duration(1, never=True, event=True)),
        Key("max_pause", "5 min", _SPAN.format("1 s"), _duration(1)),
        Key("initial_delay", "0 s", _SPAN.format("0"), _duration(0)),
        Key("gaps", "reported", '"reported" or "expected"', _gaps),
        Key("timeout", "10 min", _SPAN.format("1 s"), _duration(1)),
        Key("min_pause", "0 s", _SPAN.format("0"), _duration(0)),
        Key("max_concurrent_checkpoints", 1, "a whole number from 1 to 100", _whole_number(1, 100)),
        Key("unaligned", False, "true or false", _truth),
        Key("aligned_timeout", "0 s", _SPAN.format("0"), _duration(0)),
        Key("tolerable_failed_checkpoints", 0, "a whole number from 0 to 1000000", _whole_number(0)),
        Key(
            "retention",
            "retain_on_cancellation",
            " or ".join(f'"{choice}"' for choice in RETENTIONS),
            _one_of(*RETENTIONS),
        ),
        Key("num_retained", 10, "a whole number from 1 to 1000000", _whole_number(1)),
        Key("retain_for", "0 s", _SPAN.format("0"), _duration(0)),
        Key("retain_per_day", 0, "a whole number from 0 to 1000", _whole_number(0, 1000)),
        Key("retain_days", 30, "a whole number from 1 to 3660", _whole_number(1, 3660)),
        Key("savepoint_interval", "never", _SPAN.format("1 s") + ', or "never"', _duration(1, never=True)),
        Key("proposal_ttl", "14 day", _SPAN.format("1 s") + ', or "never"', _duration(1, never=True)),
        Key("savepoints_retained", 3, "a whole number from 1 to 1000", _whole_number(1, 1000)),
        Key("prefer_checkpoint_for_recovery", False, "true or false", _truth),
        Key("max_parallelism", 128, "a whole number from 1 to 32768", _whole_number(1, 32768)),
        Key("allow_non_restored_state", False, "true or false", _truth),
        Key("watermark", "0 s", _SPAN.format("0"), _duration(0)),
        Key("idle_timeout", "never", _SPAN.format("1 s") + ', or "never"', _duration(1, never=True)),
        Key("max_unpublished", None, "a whole number from 1 to 1000000", _whole_number(1)),
        Key("restart.strategy", "exponential", '"exponential", "fixed", "failure_rate" or "none"', _one_of(*RESTARTS)),
        Key("restart.attempts", 3, "a whole number from 1 to 1000", _whole_number(1, 1000)),
        Key("restart.delay", "1 s", _SPAN.format("1 s"), _duration(1)),
        Key("restart.max_delay", "1 min", _SPAN.format("1 s"), _duration(1)),
        Key("restart.per", "10 min", _SPAN.format("1 s"), _duration(1)),
        Key("sample_rows", 0, "a whole number from 0 to 100", _whole_number(0, 100)),
        Key("sample_hidden", "", 'names of columns such as "email, phone"', _columns),
        Key("root", "tidegate-data/ledger", _PATH, _folder),
        Key("data", ".", _PATH, _folder),
        Key("storage", None, 'a connection of Airflow, "airflow:ID"', _airflow_login),
        Key("storage_options", {}, "a table of texts, numbers or true/false", _entry, table=True, secret=True),
        Key("connections", {}, _CONNECTIONS, _entry, table=True, secret=True),
        Key("spark.mode", "connect", '"connect", "local" or "submit"', _one_of("connect", "local", "submit")),
        Key("spark.remote", None, 'the URL of a Spark Connect server, "sc://host:port"', _remote),
        Key("spark.master", "local[*]", '"local[N]", "local[*]", "spark://…", "k8s://…" or "yarn"', _master),
        Key("spark.memory", "2g", 'a size such as "512m" or "2g", at least 512m', _memory),
        Key("spark.idle_timeout", "10 min", _SPAN.format("1 s"), _duration(1)),
        Key("spark.start_timeout", "90 s", _SPAN.format("1 s"), _duration(1)),
        Key("spark.spare", False, "true or false", _truth),
        Key("spark.conf", {}, 'a table of Spark settings, "spark.…" = value', _entry, table=True),
        Key("jobs", {}, _JOBS, _entry, table=True),
    )
}

DESCRIPTIONS: Mapping[str, str] = {
    "mode": (
        "Whether rows become visible with the checkpoint's decision, each exactly once, or as soon as a job has "
        "written them, when a failure may leave some of them twice."
    ),
    "interval": (
        "How often a checkpoint is made. `event`: when a source has new input. `never` leaves it to runs that are "
        "triggered by hand."
    ),
    "max_pause": (
        "When `interval` is `event`, the longest time without a checkpoint: then one is made without new input, so "
        "that event time and timers move on."
    ),
    "initial_delay": "By how much every scheduled run starts later, to spread pipelines over the interval.",
    "gaps": ("Whether time that no interval of an interval pipeline covers is `reported`, or accepted as `expected`."),
    "timeout": (
        "How long a checkpoint may take from its plan until all jobs have acknowledged it; after that it is aborted."
    ),
    "min_pause": (
        "The least time between the completion of a checkpoint and the next scheduled one; needs "
        "`max_concurrent_checkpoints = 1`."
    ),
    "max_concurrent_checkpoints": "How many checkpoints may be open at the same time.",
    "unaligned": "Whether a checkpoint may complete without waiting for a job that is still busy with an earlier one.",
    "aligned_timeout": "With `unaligned`, how long a checkpoint waits for a busy job before it overtakes it.",
    "tolerable_failed_checkpoints": (
        "How many checkpoints in a row may fail; one more suspends the pipeline until it is resumed."
    ),
    "retention": (
        "What is retained after a cancel or a drain: everything, everything unless it was cancelled, or only "
        "savepoints."
    ),
    "num_retained": "How many completed checkpoints stay available for a rollback.",
    "retain_for": "Completed checkpoints younger than this stay, in addition to `num_retained`.",
    "retain_per_day": (
        "How many of the last checkpoints of each UTC day stay, of those that `num_retained` and `retain_for` "
        "do not retain."
    ),
    "retain_days": "For how many days `retain_per_day` retains checkpoints, counting only days that have any.",
    "savepoint_interval": "How often the last checkpoint automatically becomes a savepoint; `never` makes none.",
    "proposal_ttl": (
        "How long a proposal that nobody works on stays, at least an hour; `never` keeps it until somebody discards it."
    ),
    "savepoints_retained": "How many of the periodic savepoints stay; older ones are disposed of.",
    "prefer_checkpoint_for_recovery": (
        "If the last checkpoint is damaged, whether recovery proposes an ordinary checkpoint rather than a newer "
        "savepoint."
    ),
    "max_parallelism": (
        "The number of key groups that keyed state is split into; it cannot change once the pipeline has state."
    ),
    "allow_non_restored_state": (
        "Whether the code may drop a source, a sink, an operator or a hook whose state or rows the last checkpoint "
        "still holds."
    ),
    "watermark": (
        "How much older than its source's newest row a row may be before it is late, for sources that do not say."
    ),
    "idle_timeout": (
        "After how long without new rows a source stops holding back event time; with `never`, it always does."
    ),
    "max_unpublished": (
        "How many completed checkpoints may wait for a table that does not answer before no new one is planned; by"
        " default `num_retained`."
    ),
    "restart.strategy": (
        "How a failed job is retried: after growing delays, after a fixed delay, evenly spaced up to a "
        "failure rate, or not at all."
    ),
    "restart.attempts": (
        "How many times a failed job is retried; with `failure_rate`, how many retries are allowed in each "
        "`restart.per`."
    ),
    "restart.delay": "How long to wait before the first retry; with `fixed`, before each.",
    "restart.max_delay": "The longest wait between retries with `exponential`.",
    "restart.per": "With `failure_rate`, the time in which at most `restart.attempts` retries happen.",
    "sample_rows": (
        "How many rows of each stage, gate and operator a checkpoint stores as samples for people, for as long as it "
        "is retained; 0 stores none. Each sample is a separate query, and a job spends at most 5 s on all of them."
    ),
    "sample_hidden": (
        "Columns that are excluded from the samples of all streams, such as personal data; a column that contains a "
        "field of such a name is excluded too."
    ),
    "root": "Where the ledger is: a folder or an object store with one folder for each pipeline.",
    "data": "Where relative paths of sources and sinks start.",
    "storage": (
        "The connection of Airflow with the login to object stores, as `airflow:ID`; it is looked up where it is used, "
        "and `storage_options` adds to it."
    ),
    "storage_options": "Options and credentials for object stores; they are never recorded or shown.",
    "connections": (
        "Logins to the systems of connectors, such as Kafka and PostgreSQL: a table of options for each name that "
        "sources and sinks use (`[connections.shop]` in `tidegate.toml`); they are never recorded or shown."
    ),
    "spark.mode": (
        "Where jobs run: on a shared Spark Connect server, inside the task's own process, or each as a separate "
        "application through spark-submit."
    ),
    "spark.remote": "The Spark Connect server to use; without it tidegate starts one on this machine.",
    "spark.master": "The Spark master: `local[N]` on this machine, or a cluster, for `spark.mode` submit or connect.",
    "spark.memory": "The memory of the Spark driver that tidegate starts.",
    "spark.idle_timeout": "After how long without clients the Spark server that tidegate started shuts down.",
    "spark.start_timeout": "How long one try of a task waits for a Spark server to start.",
    "spark.spare": (
        "Whether the Spark server that tidegate starts has a warm standby, which takes over when it dies: that takes "
        "seconds, not the half minute of a cold start. It needs the memory of a second server. Ignored if the master "
        "is a cluster, where a standby would hold executors."
    ),
    "spark.conf": "Further Spark settings for the sessions that tidegate starts.",
    "jobs": (
        "Settings of single jobs, such as `jobs.scoring.spark.executor.memory`, `jobs.scoring.pool` or "
        "`jobs.main.queue`. In `tidegate.toml` they apply to each pipeline that has a job of that name."
    ),
}
"""The effect of each setting, shown by `tidegate help settings` and `tidegate config --help`."""
