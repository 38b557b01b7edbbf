"""A table's files as a pyarrow dataset, to read rows without a JVM."""

from __future__ import annotations

import functools
import operator
from typing import Any

from tidegate.delta.arrow_types import arrow_schema, typed_partition
from tidegate.delta.log.active_files import live_files
from tidegate.delta.log.commit_file import TYPE_WIDENING
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
        if TYPE_WIDENING in snapshot.protocol.features:
            return _with_narrower_files(snapshot, system)
        return snapshot.handle.to_pyarrow_dataset(filesystem=system)
    except DeltaError as error:
        raise Invalid(
            f"{location.url} cannot be read here: {str(error).splitlines()[0]}",
            expected="a table whose features delta-rs can read",
            help=f"read it with Spark: spark.read.format('delta').option('versionAsOf', {snapshot.version})",
            reason="UNREADABLE_FEATURES",
        ) from error


def _with_narrower_files(snapshot: Snapshot, system: Any) -> Any:
    """Return the dataset of a table whose files may have narrower types than its columns, which pyarrow converts.

    delta-rs refuses to read such a table, but not to list its files.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    if {"columnMapping", "deletionVectors"} & snapshot.protocol.features:
        return snapshot.handle.to_pyarrow_dataset(filesystem=system)  # which says what it cannot read
    if system is None:
        system = pa.fs.PyFileSystem(DeltaStorageHandler(snapshot.location.url, dict(snapshot.location.options)))
    names = [field["name"] for field in snapshot.schema["fields"]]
    schema = arrow_schema(snapshot.schema, names)
    form = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
    fragments = []
    for file in live_files(snapshot):
        values = typed_partition(file.partition_texts(), schema, 1)
        conditions = [ds.field(name) == column[0] for name, column in values.items() if column[0].is_valid]
        conditions += [ds.field(name).is_null() for name, column in values.items() if not column[0].is_valid]
        where = functools.reduce(operator.and_, conditions) if conditions else None
        fragments.append(form.make_fragment(file.path, filesystem=system, partition_expression=where))
    return ds.FileSystemDataset(fragments, schema, form, system)
