"""Checks whether a server still has the history that was read.

A promoted standby, and a database that was restored to an earlier time, start a new timeline. A restored copy of the
server's files even keeps the timeline. So a position also identifies what was read last, which is looked up again: a
server that has it has everything before it, and what is new there comes after it.
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
    "older_copy",
    "refuse_changed_timeline",
    "same_timeline_error",
    "unread_position_error",
]


@dataclass(frozen=True)
class ServerHistory:
    """A running server, and the history that its database has."""

    system: str
    """The same for all copies of a database."""
    timeline: int
    """It changes when a standby is promoted, or the database is restored to an earlier time."""
    started: str
    """When the server was started. An older copy cannot replace it without a start."""

    @property
    def json(self) -> Json:
        """The history as a position records it."""
        return {"system": self.system, "timeline": self.timeline, "started": self.started}


def find_history(cursor: Any, source: str, connection: str) -> ServerHistory:
    """Return the server's history. Raise Invalid if it is a standby, which does not know which transactions run."""
    cursor.execute("SELECT pg_is_in_recovery()")
    if cursor.fetchone()[0]:
        raise Invalid(
            f"source {source!r}: connection {connection!r} leads to a standby",
            expected="the primary server, which knows the running transactions",
            help=f"set target_session_attrs to read-write in {where_login_is(connection)}, or name the primary",
            reason="STANDBY",
        )
    # pg_control_checkpoint() has the timeline of the last checkpoint, which stays the old one for a while after a
    # promotion.
    cursor.execute(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()), "
        "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), extract(epoch FROM pg_postmaster_start_time())::text"
    )
    system, timeline, started = cursor.fetchone()
    return ServerHistory(str(system), int(timeline, 16), str(started))


def refuse_changed_timeline(source: str, history: ServerHistory, position: Json, *, unread: bool = False) -> None:
    """Raise Invalid if the server is on another timeline than the position. Old positions have no timeline.

    unread: nothing has been read yet, so that there is nothing to look up.
    """
    before = position.get("timeline", history.timeline)
    if before == history.timeline:
        return
    if unread:
        help = (
            f"tidegate source accept MODULE:PIPELINE {source} --unproven: nothing has been read yet that could be "
            "looked up, so make sure that this server has everything that the other one had"
        )
    else:
        help = (
            f"tidegate source accept MODULE:PIPELINE {source}: it checks that the server has what was read last, and "
            "continues after it. If it has not, roll the pipeline back to a checkpoint that the database still has, "
            "and then accept the timeline"
        )
    raise Invalid(
        f"source {source!r}: the server is on timeline {history.timeline}, and was on {before}: a standby was "
        "promoted, or the database was restored to an earlier time",
        expected=f"timeline {before}, or a person's confirmation that this one is right",
        help=help,
        reason="OTHER_TIMELINE",
    )


def older_copy(source: str, problem: str, more_help: str = "") -> Invalid:
    """Return the error for a server that does not have what was read last."""
    help = (
        "restore the right database; or roll the pipeline back to a checkpoint from before the copy, which then reads "
        "everything that the copy has"
    )
    if more_help:
        help += f"; {more_help}"
    return Invalid(
        f"source {source!r}: {problem}: was the database replaced by an older copy?",
        expected="the database that was read, with what was read last: what is new comes after that",
        help=help,
        reason="OLDER_COPY",
    )


def unread_position_error(source: str) -> Invalid:
    """Return the error for a position from before anything was read."""
    return Invalid(
        f"source {source!r} has read nothing yet that could be looked up",
        expected="a person's confirmation that this server has everything that the other one had",
        help=f"if it has: tidegate source accept MODULE:PIPELINE {source} --unproven",
        reason="NOTHING_READ",
    )


def same_timeline_error(source: str, history: ServerHistory) -> Invalid:
    """Return the error for a server that is on the same timeline as before."""
    return Invalid(
        f"source {source!r}: the server is still on timeline {history.timeline}",
        expected="a server on another timeline than the one that was read",
        help="nothing to do",
        reason="NOTHING_TO_ACCEPT",
    )
