"""JSON of sources and sinks in records: short, or in a file beside them that is named by hash."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.model.struct import Json, Sha, Struct

__all__ = ["Blob", "Payload"]


class Blob(Struct, frozen=True, kw_only=True):
    """A long list that lies beside its record: where, and what it must hash to."""

    path: Annotated[str, msgspec.Meta(pattern="^blobs/[^/]+$")]
    """Below the ledger. Retention deletes by it, so it can name nothing but a side file."""
    sha: Sha
    size: Annotated[int, msgspec.Meta(ge=0)]


class Payload(Struct, frozen=True, kw_only=True):
    """A JSON object of a source or sink: inline if it is short, else in a file that is named by hash."""

    data: Json | None = None
    blob: Blob | None = None
