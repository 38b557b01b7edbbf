"""Defaults ← tidegate.toml ← TIDEGATE_* variables ← the pipeline's code ← -D key=value; later wins.

Tables (`storage_options`, `connections`, `spark.conf`) are merged entry by entry. Values that a later layer overrides
are checked too. `tidegate.toml` is found by walking up from the working directory; its folder is the *project folder*,
from which relative paths start. Without the file, that is the working directory.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidegate.config.keys import DRIVER_MEMORY, ENV_PREFIX, EVENT, KEYS, InvalidValue, Key, duration_text, parse_entry
from tidegate.config.settings import RestartSettings, Settings, SparkOptions, is_harmless_entry
from tidegate.config.spark_keys import OF_THE_CLUSTER, check_spark_key, is_session_key
from tidegate.errors import Invalid
from tidegate.records.airflow_login import StorageLogin
from tidegate.records.masking import MASK, without_logins
from tidegate.records.place import is_url
from tidegate.versions.python import tomllib

__all__ = ["FILE_NAME", "load_settings"]

FILE_NAME = "tidegate.toml"
OTHER_VARIABLES = frozenset({"TIDEGATE_JARS", "TIDEGATE_DEBUG", "TIDEGATE_SPARK_LOG_LEVEL", "TIDEGATE_PYTHON_PATH"})
"""Variables with the prefix that are not settings: the folder of the jars, tracebacks in the CLI, Spark's log level,
and the folders with the user's modules, for Spark's processes."""

_PLAIN_KEYS = frozenset(key.name for key in KEYS.values() if not key.table)


@dataclass(frozen=True)
class _LayeredValue:
    """One configured value, with its key and the layer that it comes from."""

    key: str
    value: object
    origin: str
    entry: str = ""
    """The entry's name if the key is a table."""


def load_settings(
    cli: Mapping[str, str] | None = None,
    code: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Settings:
    """Return the effective settings, or raise Invalid with all errors.

    cli: -D key=value. code: the settings in the pipeline's code. start: where the search for tidegate.toml begins.
    """
    problems: list[str] = []
    folder = Path(start or Path.cwd()).absolute()
    file = _find_file(folder)
    environment = os.environ if env is None else env
    configured = [
        *_from_file(file, problems),
        *_from_environment(environment, problems),
        *_flatten(code or {}, lambda _: "code", problems),
        *_flatten(cli or {}, lambda _: "-D", problems),
    ]
    values, origins = _effective(configured, problems)
    _check_together(values, origins, problems)
    if problems:
        if len(problems) == 1:
            head = "1 setting is wrong"
        else:
            head = f"{len(problems)} settings are wrong"
        raise Invalid(
            "\n".join([f"{head}:", *(f"  - {problem}" for problem in problems)]),
            help="`tidegate config` shows every key with its value and origin",
            reason="BAD_SETTINGS",
        )
    return _settings(values, origins, file.parent if file else folder)


def _find_file(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        file = parent / FILE_NAME
        if file.is_file():
            return file
    return None


def _from_file(file: Path | None, problems: list[str]) -> Iterable[_LayeredValue]:
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file} is not TOML: {error}")
        return []
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file} cannot be read: {error}")
        return []
    lines = _line_numbers(text)
    return _flatten(tables, lambda key: f"{file} line {lines[key]}" if key in lines else str(file), problems)


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line of each plainly written key. Empty if the file may have multi-line texts, which could mislead."""
    if '"""' in text or "'''" in text:
        return {}
    section, lines = "", {}
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = head[1].replace('"', "").strip() + "."
        elif pair := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            lines[section + pair[1].replace('"', "").replace("'", "")] = number
    return lines


def _from_environment(env: Mapping[str, str], problems: list[str]) -> Iterable[_LayeredValue]:
    variables = {key.variable: key for key in KEYS.values()}
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        key = variables.get(name)
        if key is None:
            suggestion = _did_you_mean(name, sorted({*variables, *OTHER_VARIABLES}), ENV_PREFIX)
            problems.append(f"{name} is not a setting of tidegate{suggestion}; unset or rename it")
        elif not key.table:
            yield _LayeredValue(key.name, env[name], name)
        else:
            yield from _table_from_json(key, env[name], problems)


def _table_from_json(key: Key, text: str, problems: list[str]) -> Iterator[_LayeredValue]:
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        problems.append(f'{key.name} = {MASK} ({key.variable}): expected a JSON object, {{"name": "value"}}')
        return
    for name, value in _leaf_settings(table):
        yield _LayeredValue(key.name, value, key.variable, entry=name)


def _flatten(layer: Mapping[str, object], origin: Callable[[str], str], problems: list[str]) -> Iterator[_LayeredValue]:
    """Yield nested tables and dotted names alike: {"spark": {"mode": …}} is spark.mode; entries keep their dots."""
    for path, value in _leaf_settings(layer):
        table = next((key for key in KEYS.values() if key.table and path.startswith(f"{key.name}.")), None)
        if path in KEYS and not KEYS[path].table:
            yield _LayeredValue(path, value, origin(path))
        elif table is not None:
            yield _LayeredValue(table.name, value, origin(path), entry=path.removeprefix(f"{table.name}."))
        elif path in KEYS and value != {}:
            problems.append(
                f"{path} = {_short(path, value)} ({origin(path)}): expected {KEYS[path].expected}"
                f" (on the command line: -D {path}.NAME=VALUE)"
            )
        elif path not in KEYS and value != {}:
            setting = f"{path} = {_short(path, value)} ({origin(path)})"
            problems.append(f"{setting}: no such setting{_did_you_mean(path, KEYS)}")


def _leaf_settings(layer: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in layer.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and path not in _PLAIN_KEYS:
            yield from _leaf_settings(value, f"{path}.")
        else:
            yield path, value


def _effective(configured: Iterable[_LayeredValue], problems: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Check each value. Return the effective values, where later layers win, and the origin of each."""
    values: dict[str, Any] = {}
    for key in KEYS.values():
        if key.table:
            values[key.name] = {}
        else:
            values[key.name] = key.parse(key.default) if key.default is not None else None
    origins = dict.fromkeys(KEYS, "default")
    for item in configured:
        key, full = KEYS[item.key], f"{item.key}.{item.entry}" if item.entry else item.key
        try:
            if item.entry:
                value = parse_entry(key, item.entry, item.value)
            else:
                value = key.parse(item.value)
        except InvalidValue as error:
            why = f" ({error})" if str(error) else ""
            problems.append(f"{full} = {_short(full, item.value)} ({item.origin}): expected {key.expected}{why}")
            continue
        if key.table:
            values[key.name][item.entry] = value
        else:
            values[key.name] = value
        origins[full] = item.origin
    return values, origins


def _check_together(values: dict[str, Any], origins: dict[str, str], problems: list[str]) -> None:
    """Check settings that depend on each other, and fill in a default that depends on another value."""
    if values["max_unpublished"] is None:
        values["max_unpublished"] = values["num_retained"]
        origins["max_unpublished"] = "default (= num_retained)"
    concurrent = values["max_concurrent_checkpoints"]
    if values["min_pause"] > 0 and concurrent > 1:
        problems.append(
            f"max_concurrent_checkpoints = {concurrent} ({origins['max_concurrent_checkpoints']}): expected 1,"
            f" because min_pause = {duration_text(values['min_pause'])} ({origins['min_pause']}) spaces"
            " checkpoints, which leaves one at a time"
        )
    if values["unaligned"] and values["mode"] == "at_least_once":
        problems.append(
            f"unaligned = true ({origins['unaligned']}): expected false, because of mode = 'at_least_once'"
            f" ({origins['mode']}): there, jobs block nothing and write to their tables before the decision"
        )
    if values["unaligned"] and concurrent < 2:
        problems.append(
            f"max_concurrent_checkpoints = {concurrent} ({origins['max_concurrent_checkpoints']}): expected 2 or more,"
            f" because of unaligned = true ({origins['unaligned']}): the next checkpoint overtakes a busy job, so it"
            " has to start while this one is open"
        )
    _check_spark(values, origins, problems)


def _check_spark(values: dict[str, Any], origins: dict[str, str], problems: list[str]) -> None:
    """Check `spark.master` and `spark.remote` against the mode, which determines how Spark is started."""
    mode, master = values["spark.mode"], values["spark.master"]
    why = f"because spark.mode = {mode!r} ({origins['spark.mode']})"
    if mode == "local" and not master.startswith("local"):
        problems.append(
            f"spark.master = {_short('spark.master', master)} ({origins['spark.master']}): expected local[N] or"
            f" local[*], {why} runs Spark in this process; a cluster is used with spark.mode = 'submit' or 'connect'"
        )
    if mode == "submit" and values["spark.remote"] is not None:
        problems.append(
            f"spark.remote ({origins['spark.remote']}): expected none, {why} starts a separate Spark for each job, on"
            " spark.master"
        )
    _check_jobs(values, origins, problems)


def _check_jobs(values: dict[str, Any], origins: dict[str, str], problems: list[str]) -> None:
    """Check each job's own Spark settings: their keys, and whether the mode can apply them to a single job."""
    mode = values["spark.mode"]
    for entry, value in values["jobs"].items():
        full, key = f"jobs.{entry}", entry.partition(".")[2]
        if not key.startswith("spark."):
            continue
        setting = f"{full} = {_short(full, value)} ({origins[full]})"
        if key == DRIVER_MEMORY and mode == "submit":
            try:
                KEYS["spark.memory"].parse(value)
            except InvalidValue:
                problems.append(f"{setting}: expected {KEYS['spark.memory'].expected}")
            continue
        if key != DRIVER_MEMORY and not (mode == "submit" and key in OF_THE_CLUSTER):
            try:
                check_spark_key(key, value)
            except Invalid as error:
                expected = f" Expected: {error.expected}." if error.expected else ""
                problems.append(f"{setting}: {error.what}{expected} {error.help}")
                continue
        # A mode set with -D is for this one run, such as a test, which then ignores the key.
        if mode != "submit" and not is_session_key(key) and origins["spark.mode"] != "-D":
            problems.append(
                f"{setting}: expected keys of a session, spark.sql.… or spark.databricks.…, because spark.mode ="
                f" {mode!r} ({origins['spark.mode']}) runs all jobs in one Spark, whose memory, cores and executors"
                " they share; set it for all with spark.conf (memory with spark.memory), or run each job as a separate"
                " Spark application with spark.mode = 'submit'"
            )


def _settings(values: dict[str, Any], origins: dict[str, str], project: Path) -> Settings:
    return Settings(
        mode=values["mode"],
        interval=values["interval"] if values["interval"] != EVENT else None,
        by_event=values["interval"] == EVENT,
        max_pause=values["max_pause"],
        initial_delay=values["initial_delay"],
        gaps=values["gaps"],
        timeout=values["timeout"],
        min_pause=values["min_pause"],
        max_concurrent_checkpoints=values["max_concurrent_checkpoints"],
        unaligned=values["unaligned"],
        aligned_timeout=values["aligned_timeout"],
        tolerable_failed_checkpoints=values["tolerable_failed_checkpoints"],
        retention=values["retention"],
        num_retained=values["num_retained"],
        retain_for=values["retain_for"],
        retain_per_day=values["retain_per_day"],
        retain_days=values["retain_days"],
        savepoint_interval=values["savepoint_interval"],
        proposal_ttl=values["proposal_ttl"],
        savepoints_retained=values["savepoints_retained"],
        prefer_checkpoint_for_recovery=values["prefer_checkpoint_for_recovery"],
        max_parallelism=values["max_parallelism"],
        allow_non_restored_state=values["allow_non_restored_state"],
        watermark=values["watermark"],
        idle_timeout=values["idle_timeout"],
        max_unpublished=values["max_unpublished"],
        sample_rows=values["sample_rows"],
        sample_hidden=values["sample_hidden"],
        restart=RestartSettings(
            strategy=values["restart.strategy"],
            attempts=values["restart.attempts"],
            delay=values["restart.delay"],
            max_delay=values["restart.max_delay"],
            per=values["restart.per"],
        ),
        root=_absolute(values["root"], project),
        data=_absolute(values["data"], project),
        storage=values["storage"],
        storage_options=_storage_options(values["storage"], MappingProxyType(values["storage_options"])),
        connections=MappingProxyType(values["connections"]),
        spark=SparkOptions(
            mode=values["spark.mode"],
            remote=values["spark.remote"],
            master=values["spark.master"],
            memory=values["spark.memory"],
            idle_timeout=values["spark.idle_timeout"],
            start_timeout=values["spark.start_timeout"],
            spare=values["spark.spare"],
            conf=MappingProxyType(values["spark.conf"]),
        ),
        jobs=MappingProxyType(values["jobs"]),
        project=project,
        origins=MappingProxyType(origins),
    )


def _storage_options(storage: str | None, given: Mapping[str, str]) -> Mapping[str, str]:
    if storage is None:
        return given
    return StorageLogin(storage, given)


def _absolute(path: str, project: Path) -> str:
    if is_url(path):
        return path.rstrip("/")
    return os.path.normpath(project / Path(path.removeprefix("file://")).expanduser())


def _short(key: str, value: object) -> str:
    """Return a wrong value for a message: without possible secrets and control characters, and not too long."""
    if key in KEYS:
        likely_keys = [key]
    else:
        likely_keys = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
    is_plain = bool(likely_keys) and not KEYS[likely_keys[0]].table
    table = KEYS["jobs"] if key.startswith("jobs.") else KEYS["spark.conf"]
    if not is_plain and not is_harmless_entry(table, key.removeprefix(f"{table.name}.")):
        return MASK
    text = without_logins(str(value) if isinstance(value, Path) else ascii(value))
    return text if len(text) <= 80 else f"{text[:77]}…"


def _did_you_mean(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Suggest the closest name, or list all. The common prefix is ignored, since it would make all names close."""
    names = [candidate.removeprefix(prefix) for candidate in choices]
    closest = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0.6)
    if closest:
        return f"; did you mean {prefix}{closest[0]}?"
    return f"; the settings are {', '.join(choices)}"
