"""A table's files as a pyarrow dataset, to read rows without a JVM."""

from __future__ import annotations

from typing import Any

from tidegate.delta.log.snapshot import Snapshot
from tidegate.errors import Invalid

__all__ = ["dataset"]


def dataset(snapshot: Snapshot) -> Any:
    """Return the table's files as a pyarrow dataset. Local files are read directly, not through delta-rs' storage."""
    import pyarrow.fs
    from deltalake.exceptions import DeltaError

    location = snapshot.location
    system = None
    if location.is_local:
        system = pyarrow.fs.SubTreeFileSystem(location.url, pyarrow.fs.LocalFileSystem())
    try:
        return snapshot.handle.to_pyarrow_dataset(filesystem=system)
    except DeltaError as error:
        raise Invalid(
            f"{location.url} cannot be read here: {str(error).splitlines()[0]}",
            expected="a table whose features delta-rs can read",
            help=f"read it with Spark: spark.read.format('delta').option('versionAsOf', {snapshot.version})",
            reason="UNREADABLE_FEATURES",
        ) from error
