"""Records which pipeline owns a table, so that a pipeline that starts from scratch does not duplicate its rows.

A pipeline's uid is part of its transaction's app id. After its root has been wiped, a pipeline gets a new uid, which
tables do not contain, and would publish everything again. So each commit carries a second transaction, whose app id
does not contain the uid, and whose version is a number derived from it. One look-up of it shows whether a pipeline with
another uid has published here.
"""

from __future__ import annotations

from tidegate.delta.log.snapshot import Snapshot
from tidegate.errors import Invalid
from tidegate.records.codec import sha256

__all__ = ["owner_of", "refuse_owner"]


def owner_of(pipeline: str, sink: str, uid: str) -> tuple[str, int]:
    """Return the transaction that identifies the publisher of a sink: its app id, and a 62-bit number for the uid."""
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
        "the sink with take_over=True: the old rows stay, and this pipeline starts from the beginning",
        reason="OTHER_OWNER",
    )
