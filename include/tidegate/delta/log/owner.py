"""Who owns a table: a pipeline that was started afresh must not add to its predecessor's rows unnoticed.

A pipeline's uid is part of its transaction's app id. After its root has been wiped, a pipeline gets a new uid, which no
table knows, and would publish everything again. So each commit carries a second transaction whose app id has no
uid in it, and whose version is a number derived from the uid: one lookup shows that another uid has published here.
"""

from __future__ import annotations

from tidegate.delta.log.snapshot import Snapshot
from tidegate.errors import Invalid
from tidegate.records.codec import sha256

__all__ = ["owner_of", "refuse_owner"]


def owner_of(pipeline: str, sink: str, uid: str) -> tuple[str, int]:
    """Return the transaction that says who publishes this sink: app id, and a 62-bit number for the uid."""
    return f"tidegate-owner/{pipeline}/{sink}", int(sha256(uid.encode())[:16], 16) >> 2


def refuse_owner(snapshot: Snapshot, pipeline: str, sink: str, uid: str) -> None:
    """Raise Invalid if a pipeline of this name but with another uid has published this sink here."""
    app_id, number = owner_of(pipeline, sink, uid)
    owner = snapshot.txn(app_id)
    if owner is None or owner == number:
        return
    raise Invalid(
        f"{snapshot.location.url} was published by another pipeline named {pipeline!r} (sink {sink!r}): "
        f"owner {owner:016x} in the table, this one is {number:016x} (uid {uid})",
        expected="the pipeline that published here before, with its checkpoints",
        help="was the pipeline's root wiped or moved? Point it to the old root, use another table, or declare "
        "the sink with take_over=True: the old one's rows stay, and this one starts from the beginning",
        reason="OTHER_OWNER",
    )
