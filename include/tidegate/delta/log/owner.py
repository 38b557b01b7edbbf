"""Whose table this is: a pipeline that was started afresh must not add to its predecessor's rows unnoticed.

A pipeline's uid is part of its transaction's app id, so a wiped root makes a pipeline that no table knows,
and that would publish everything again. Therefore each commit carries a second transaction whose app id
holds no uid, and whose version is a number made from it: one look-up tells that another uid was here.
"""

from __future__ import annotations

from tidegate.delta.log.snapshot import Snapshot
from tidegate.errors import Invalid
from tidegate.records.codec import sha256

__all__ = ["owner_of", "refuse_owner"]


def owner_of(pipeline: str, sink: str, uid: str) -> tuple[str, int]:
    """The transaction that says who publishes this sink: app id, and a 62-bit number for the uid."""
    return f"tidegate-owner/{pipeline}/{sink}", int(sha256(uid.encode())[:16], 16) >> 2


def refuse_owner(snapshot: Snapshot, pipeline: str, sink: str, uid: str) -> None:
    """Invalid if a pipeline of this name but with another uid has published this sink here."""
    app_id, number = owner_of(pipeline, sink, uid)
    found = snapshot.txn(app_id)
    if found is None or found == number:
        return
    raise Invalid(
        f"{snapshot.location.url} was published by another pipeline named {pipeline!r} (sink {sink!r}): "
        f"owner {found:016x} in the table, this one is {number:016x} (uid {uid})",
        expected="the pipeline that published here before, with its checkpoints",
        help="was the pipeline's root wiped or moved? Point it to the old root, use another table, or declare "
        "the sink with take_over=True: the old one's rows stay, and this one starts from the beginning",
        reason="OTHER_OWNER",
    )
