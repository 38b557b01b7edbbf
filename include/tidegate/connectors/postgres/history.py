"""Whether a server still has the history that was read: a position says which one that was.

A standby that is promoted, and a database that is restored to an earlier time, begin a timeline of their own. A copy of
the server's files that is put back keeps even that. So a position also holds what was read last, which is looked for
again: whatever has it has all that came before, and what is new there comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.errors import Invalid
from tidegate.records.airflow_login import where_login_is
from tidegate.records.records import Json

__all__ = [
    "ServerHistory",
    "find_history",
    "nothing_read_error",
    "nothing_to_accept_error",
    "older_copy",
    "refuse_other_timeline",
]


@dataclass(frozen=True)
class ServerHistory:
    """A running server, and which of the histories of its database it has."""

    system: str
    """Of all copies of a database the same."""
    timeline: int
    """Another one after a standby was promoted, and after a restore to an earlier time."""
    started: str
    """When the server was started. Nobody can put an older copy in its place without starting it."""

    @property
    def json(self) -> Json:
        """As a position has it."""
        return {"system": self.system, "timeline": self.timeline, "started": self.started}


def find_history(cursor: Any, source: str, connection: str) -> ServerHistory:
    """Ask the server. Raise Invalid if it is a standby, which does not know what is still running."""
    cursor.execute("SELECT pg_is_in_recovery()")
    if cursor.fetchone()[0]:
        raise Invalid(
            f"source {source!r}: connection {connection!r} leads to a standby",
            expected="the primary server, which knows what is still running",
            help=f"set target_session_attrs to read-write in {where_login_is(connection)}, or name the primary",
            reason="STANDBY",
        )
    # pg_control_checkpoint() tells the last checkpoint's timeline: for a while after a promotion that is the old one.
    cursor.execute(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()), "
        "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), extract(epoch FROM pg_postmaster_start_time())::text"
    )
    system, timeline, started = cursor.fetchone()
    return ServerHistory(str(system), int(timeline, 16), str(started))


def refuse_other_timeline(source: str, history: ServerHistory, position: Json, *, unread: bool = False) -> None:
    """Raise Invalid if the history has branched off since. A position of an older version does not say where it was.

    unread: nothing was read yet that could be looked for.
    """
    then = position.get("timeline", history.timeline)
    if then != history.timeline:
        raise Invalid(
            f"source {source!r}: the server is on timeline {history.timeline}, and was on {then}: a standby was "
            "promoted, or the database was restored to an earlier time",
            expected=f"timeline {then}, or a person's word that this one is to be read",
            help=f"tidegate source accept MODULE:PIPELINE {source} --unproven: nothing was read yet that could be "
            "looked for, so make sure that this server has all that the other one had"
            if unread
            else f"tidegate source accept MODULE:PIPELINE {source}: it looks whether what was read last is there, and "
            "continues after it. If it is not there, roll the pipeline back to a checkpoint that the database still "
            "has, and accept the timeline then",
            reason="OTHER_TIMELINE",
        )


def older_copy(source: str, what: str, more_help: str = "") -> Invalid:
    """Return the error for a server that does not have what was read last."""
    return Invalid(
        f"source {source!r}: {what}: was an older copy of the database put in its place?",
        expected="the database that was read, which has what was read last: what is new comes after that",
        help="put the right database back; or roll the pipeline back to a checkpoint from before the copy, after which "
        "everything that the copy has is read" + (f"; {more_help}" if more_help else ""),
        reason="OLDER_COPY",
    )


def nothing_read_error(source: str) -> Invalid:
    """Return the error for a position from before anything was read."""
    return Invalid(
        f"source {source!r} has read nothing yet that could be looked for",
        expected="a person's word that this server has all that the other one had",
        help=f"if it has: tidegate source accept MODULE:PIPELINE {source} --unproven",
        reason="NOTHING_READ",
    )


def nothing_to_accept_error(source: str, history: ServerHistory) -> Invalid:
    """Return the error for a server that is on the same timeline as before."""
    return Invalid(
        f"source {source!r}: the server is on timeline {history.timeline}, as it was",
        expected="a server on another timeline than the one that was read",
        help="nothing to do",
        reason="NOTHING_TO_ACCEPT",
    )
