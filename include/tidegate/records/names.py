"""Names that become folder names, table tags and SQL identifiers: checked once, strictly."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from tidegate.errors import Invalid

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_ENTRY = re.compile(r"[0-9]{8,18}")

AIRFLOW = "airflow"
"""What the ledger's names of Airflow's runs begin with."""
RUN_LIMIT = 1000
"""Run ids are kept in the plan; Airflow's are at most 250 long."""


def check_name(what: str, name: object) -> str:
    """Return `name` if it may name a pipeline, source, stage, sink or job; otherwise refuse it."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(
            f"{what} name {name!r} is not allowed",
            expected="1 to 63 lower-case letters, digits, '_' or '-', starting with a letter or digit",
            help=f"rename the {what}; what people read can go into the documentation instead",
            reason="BAD_NAME",
        )
    return name


def entry_name(id: int) -> str:
    """The folder name of entry `id`: zero-padded, so that names sort as ids do."""
    return f"{id:08d}"


def entry_id(name: str) -> int | None:
    """The id that a folder name stands for, or None if it is no entry's folder."""
    return int(name) if _ENTRY.fullmatch(name) and entry_name(int(name)) == name else None


def airflow_run(dag_id: str, run_id: str, cleared: int = 0) -> str:
    """The ledger's name for a run of a DAG: the same one for all its tasks, tries and clears.

    cleared: how often it was, if each time is a run of its own. So it is in interval pipelines, where clearing means
    to make the interval again.
    """
    return f"{AIRFLOW}:{dag_id}:{run_id}" + (f" (cleared {cleared})" if cleared else "")


def run_key(run: str) -> str:
    """A run id as a file name. Run ids come from outside and may hold anything: hashed, never a path."""
    return hashlib.sha256(run.encode()).hexdigest()


def check_run(run: object) -> str:
    """Return `run` if it may be a run id: any text that a record can hold."""
    if not isinstance(run, str) or not run.strip() or len(run) > RUN_LIMIT or not _is_unicode(run):
        shown = repr(run) if len(repr(run)) <= 100 else f"{repr(run)[:100]}…"
        raise Invalid(
            f"run id {shown} is not allowed",
            expected=f"1 to {RUN_LIMIT} characters of Unicode text",
            help="give each run an id of its own, such as Airflow's run_id",
            reason="BAD_RUN",
        )
    return run


def _is_unicode(text: str) -> bool:
    """Whether the text can be written: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(name: str) -> str:
    """A column's name as Spark's SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: str | Iterable[str]) -> list[str]:
    """Names that the user may give as one or as several. Of anything but a list the order may be another each time, or
    a part would be lost."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, list | tuple):
        raise Invalid(
            f"{names!r} is a {type(names).__name__}, where columns are named",
            expected='a name, or a list of names: "id", ["id", "country"]',
            help="write a list",
            reason="BAD_PIPELINE",
        )
    return list(names)
