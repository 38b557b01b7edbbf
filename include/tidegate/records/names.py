"""Names that become folder names, table tags and SQL identifiers: checked once, strictly."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from tidegate.errors import Invalid

MAX_NAME_LENGTH = 63
NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}")
_ENTRY = re.compile(r"[0-9]{8,18}")

AIRFLOW = "airflow"
"""The prefix of the ledger's names of Airflow runs."""
RUN_LIMIT = 1000
"""The maximum length of a run id, which plans hold. Airflow's are at most 250 long."""


def check_name(kind: str, name: object) -> str:
    """Return `name` if it may name a pipeline, source, stage, sink or job; otherwise raise Invalid."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(
            f"{kind} name {name!r} is not allowed",
            expected="1 to 63 lower-case letters, digits, '_' or '-', starting with a letter or digit",
            help=f"rename the {kind}; a title for people can go into the documentation instead",
            reason="BAD_NAME",
        )
    return name


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column of tidegate's own, with enough underscores to differ from a frame's columns."""
    names = {column.casefold() for column in taken}
    while name.casefold() in names:
        name += "_"
    return name


def entry_name(id: int) -> str:
    """Return the folder name of entry `id`: zero-padded, so that names sort as ids do."""
    return f"{id:08d}"


def entry_id(name: str) -> int | None:
    """Return the id of a folder name, or None if it is not the folder of an entry."""
    if not _ENTRY.fullmatch(name):
        return None
    id = int(name)
    return id if entry_name(id) == name else None


def airflow_run(dag_id: str, run_id: str, cleared: int = 0) -> str:
    """Return the ledger's name for a run of a DAG: the same one for all its tasks, tries and clears.

    cleared: how often the run was cleared, if each time counts as a separate run. That is the case in interval
    pipelines, where clearing means to process the interval again.
    """
    name = f"{AIRFLOW}:{dag_id}:{run_id}"
    return f"{name} (cleared {cleared})" if cleared else name


_RUN_SUFFIX = re.compile(r" \((?:cleared [0-9]+|part [0-9a-f]+)\)\Z")


def dag_run_of(run: str) -> tuple[str, str] | None:
    """Return the ids of the DAG and the run, by the ledger's name for the run, or None if it was no Airflow run."""
    prefix, _, ids = run.partition(":")
    dag_id, _, run_id = ids.partition(":")  # an Airflow dag_id holds no colon
    if prefix != AIRFLOW or not run_id:
        return None
    return dag_id, _RUN_SUFFIX.sub("", run_id)


COMPLETE = "complete"
SWAP = "swap"
"""The tasks that decide an entry: the last one of a checkpoint's run, and the one that swaps a backfill in."""

BACKFILL = "__backfill"
"""Suffix of the backfill DAG's id."""


def backfill_dag(dag_id: str) -> str:
    """Return the id of the pipeline's backfill DAG."""
    return f"{dag_id}{BACKFILL}"


CONF_FROM = "from"
"""The key in the configuration of Airflow's own backfill that says where it begins, if not at its first date. It is
also the field of the backfill DAG's form."""


def part_of_run(run: str, part: str) -> str:
    """Return the ledger's name for one of several backfill checkpoints that one run makes."""
    return f"{run} (part {part})"


def run_key(run: str) -> str:
    """Return a run id as a file name: hashed, because run ids come from outside and may contain anything."""
    return hashlib.sha256(run.encode()).hexdigest()


def check_run(run: object) -> str:
    """Return `run` if it may be a run id: any text that a record can hold. Otherwise raise Invalid."""
    if not isinstance(run, str) or not run.strip() or len(run) > RUN_LIMIT or not _is_unicode(run):
        excerpt = repr(run) if len(repr(run)) <= 100 else f"{repr(run)[:100]}…"
        raise Invalid(
            f"run id {excerpt} is not allowed",
            expected=f"1 to {RUN_LIMIT} characters of Unicode text",
            help="use a different id for each run, such as Airflow's run_id",
            reason="BAD_RUN",
        )
    return run


def _is_unicode(text: str) -> bool:
    """Return whether the text can be encoded. Half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(name: str) -> str:
    """Quote the name of a column for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def field_of(value: str, name: str) -> str:
    """Return a field of a struct as Spark SQL. Plain `o`.`id` would be column id if the frame has the alias o."""
    return f"coalesce({value}).{quoted(name)}"


def quoted_text(text: str) -> str:
    """Return a text as Spark SQL. Quotes and backslashes are written in hex, because a session setting determines how
    they are escaped."""
    if "'" in text or "\\" in text:
        return f"CAST(X'{text.encode().hex()}' AS STRING)"
    return f"'{text}'"


def listed(names: str | Iterable[str]) -> list[str]:
    """Return names that the user passes as one name or as a list.

    Raise Invalid for any other collection: its order may change, or it may drop duplicates.
    """
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
