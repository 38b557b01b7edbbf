"""The effective settings: typed attributes for the code, masked rows for display, JSON for the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config.keys import EVENT, JOB_OPTIONS, KEYS, Key, duration_text
from tidegate.config.spark_keys import is_session_key
from tidegate.records.airflow_login import StorageLogin
from tidegate.records.masking import MASK, is_harmless, without_logins
from tidegate.records.place import Place

__all__ = ["JobOptions", "RestartSettings", "Settings", "ShownSetting", "SparkOptions", "is_harmless_entry", "masked"]

NEVER = ("interval", "idle_timeout", "savepoint_interval", "proposal_ttl")
"""Durations that may be None, written as "never"."""


@dataclass(frozen=True)
class SparkOptions:
    """Settings of the jobs' Spark sessions. May hold a login: `remote` and `conf` are never printed."""

    mode: str
    remote: str | None = field(repr=False)
    master: str
    memory: str
    idle_timeout: float
    start_timeout: float
    spare: bool
    conf: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class JobOptions:
    """The settings of one job. `spark` overrides `spark.conf`, and may hold a login like it."""

    airflow: Mapping[str, str | int]
    """Those for its task in Airflow: pool, pool_slots, queue, executor, priority_weight, if set."""
    spark: Mapping[str, str] = field(repr=False)
    """Only the settings that the mode can apply to a single job."""


@dataclass(frozen=True)
class RestartSettings:
    """Settings of the retries of a failed job (config/keys.py: RESTARTS)."""

    strategy: str
    attempts: int
    delay: float
    max_delay: float
    per: float


@dataclass(frozen=True)
class ShownSetting:
    """One row for display: secrets are masked."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True)
class Settings:
    """The effective settings of one pipeline, or of no particular one. Durations are in seconds."""

    mode: str
    """When rows become visible (config/keys.py: MODES)."""
    interval: float | None
    """None: no schedule."""
    by_event: bool
    """Whether a checkpoint is made when a source has new input: interval = "event"."""
    max_pause: float
    """With by_event, the longest time without a checkpoint."""
    initial_delay: float
    gaps: str
    """Whether time that no interval covers is reported (config/keys.py: GAPS)."""
    timeout: float
    min_pause: float
    max_concurrent_checkpoints: int
    unaligned: bool
    """Whether a checkpoint may overtake a job that reads channels and is busy with an earlier one."""
    aligned_timeout: float
    """How long it waits for such a job first."""
    tolerable_failed_checkpoints: int
    retention: str
    """What is retained after `cancel` and after a drain (config/keys.py: RETENTIONS)."""
    num_retained: int
    retain_for: float
    """Checkpoints that completed within this time stay, regardless of their number."""
    retain_per_day: int
    """How many of the last older checkpoints of each day stay."""
    retain_days: int
    """For how many days they stay."""
    savepoint_interval: float | None
    """How often a checkpoint automatically becomes a savepoint (lifecycle/savepoint.py). None: never."""
    proposal_ttl: float | None
    """How long a proposal stays that nobody works on (proposal/expiry.py). None: without limit."""
    savepoints_retained: int
    """How many of these savepoints stay."""
    prefer_checkpoint_for_recovery: bool
    """Whether recovery from a damaged last checkpoint prefers an ordinary checkpoint to a newer savepoint."""
    max_parallelism: int
    allow_non_restored_state: bool
    """Whether the state of an operator that the code no longer has may be dropped."""
    watermark: float
    """How much older than the newest row a row may be before it is late, if its source does not say."""
    idle_timeout: float | None
    """How long a source may be without rows before it no longer holds event time back. None: without limit."""
    max_unpublished: int
    sample_rows: int
    """How many rows of each stream a job keeps as a sample (execution/job/sampling.py)."""
    sample_hidden: str
    """Columns, with commas between them, that no sample holds."""
    restart: RestartSettings
    root: str
    data: str
    storage: str | None
    """Airflow's connection with the login of object stores: "airflow:ID"."""
    storage_options: Mapping[str, str] = field(repr=False)
    """Includes that login, which is looked up when an option is first read."""
    connections: Mapping[str, str] = field(repr=False)
    spark: SparkOptions
    jobs: Mapping[str, str] = field(repr=False)
    """By "job.option" (config/keys.py: JOB_OPTIONS) or "job.spark.…"."""
    project: Path
    origins: Mapping[str, str] = field(repr=False)
    """The origin of each value, by key; of a table's entry, by "key.entry"."""

    def place(self) -> Place:
        """Return the place where relative paths of sources and sinks start."""
        return Place(self.data, self.storage_options, str(self.project), self.connections)

    def job(self, name: str) -> JobOptions:
        """Return the settings of one job."""
        airflow: dict[str, str | int] = {}
        spark = {}
        for entry, value in self.jobs.items():
            job, _, option = entry.partition(".")
            if job != name:
                continue
            if option in JOB_OPTIONS:
                airflow[option] = JOB_OPTIONS[option][1](value)
            elif self.spark.mode == "submit" or is_session_key(option):
                spark[option] = value
        return JobOptions(airflow, spark)

    def job_display_rows(self, name: str) -> dict[str, str]:
        """Return the settings of one job, for display."""
        options = self.job(name)
        values = {**options.airflow, **options.spark}
        return {key: _public(KEYS["jobs"], f"{name}.{key}", str(value)) for key, value in sorted(values.items())}

    def display_rows(self) -> list[ShownSetting]:
        """Return every effective value with its origin, for display."""
        rows = []
        for key in KEYS.values():
            value = self._value(key.name)
            if not key.table:
                rows.append(ShownSetting(key.name, _public(key, key.name, value), self.origins[key.name]))
                continue
            for name in sorted(value):
                full = f"{key.name}.{name}"
                rows.append(ShownSetting(full, _public(key, name, value[name]), self.origins[full]))
        return rows

    def record(self) -> dict[str, Any]:
        """Return the settings as a plan records them: every value in a form that settings accept, without secrets."""
        recorded: dict[str, Any] = {}
        for key in KEYS.values():
            value = self._value(key.name)
            if key.table:
                recorded[key.name] = {name: _public(key, name, text) for name, text in sorted(value.items())}
            elif isinstance(value, int):
                recorded[key.name] = value
            elif value is not None or key.name in NEVER:
                recorded[key.name] = _public(key, key.name, value)
        return recorded

    def _value(self, name: str) -> Any:
        if name == "storage_options" and isinstance(self.storage_options, StorageLogin):
            return self.storage_options.given
        if name == "interval" and self.by_event:
            return EVENT
        section, _, field_name = name.rpartition(".")
        return getattr(getattr(self, section) if section else self, field_name)


def _public(key: Key, name: str, value: Any) -> str:
    """Return a value as text, without secrets."""
    if isinstance(value, float) or (value is None and key.name in NEVER):
        return duration_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if key.secret or (key.table and not is_harmless_entry(key, name)):
        return MASK
    return "" if value is None else without_logins(str(value))


def is_harmless_entry(key: Key, name: str) -> bool:
    """Return whether the value of an entry of a table may be shown."""
    if key.name == "jobs":
        option = name.partition(".")[2]
        return option in JOB_OPTIONS or is_harmless(option)
    return is_harmless(name)


def masked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Mask the settings that a plan has recorded, because earlier versions of tidegate masked fewer of them."""
    return {name: _masked(name, value) for name, value in record.items()}


def _masked(name: str, value: Any) -> Any:
    key = KEYS.get(name)
    if key is None:
        return MASK
    if isinstance(value, Mapping):
        return {entry: _public(key, entry, text) for entry, text in value.items()}
    if isinstance(value, str):
        return without_logins(value)
    return value
