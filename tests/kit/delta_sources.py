"""Delta logs written by hand: what a source must understand, without an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tidegate.records.records import Json
from tidegate.sources import DeltaTable, Planned

SCHEMA: Json = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def add(path: str, size: int = 10, *, change: bool = True, **more: Any) -> Json:
    return {
        "add": {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": change} | more
    }


def remove(path: str, *, change: bool = True) -> Json:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": change, "size": 10}}


def cdc(path: str) -> Json:
    return {"cdc": {"path": path, "partitionValues": {}, "size": 10, "dataChange": False}}


class Table:
    """A folder with a log, and a file of the right size for each add."""

    def __init__(self, folder: Path, table: str = "t1", **configuration: str) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.next = 0
        self.table = table
        self.configuration = configuration
        self.commit(self.metadata(), {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})

    def metadata(self, schema: Json = SCHEMA, partition_by: tuple[str, ...] = ()) -> Json:
        return {
            "metaData": {
                "id": self.table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": list(partition_by),
                "configuration": self.configuration,
                "createdTime": 1,
            }
        }

    def commit(self, *actions: Json, operation: str = "WRITE") -> int:
        self.log.mkdir(parents=True, exist_ok=True)
        for action in actions:
            if found := action.get("add") or action.get("cdc"):
                path = self.folder / found["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x" * found["size"])
        info = {"commitInfo": {"timestamp": 1_700_000_000_000 + self.next, "operation": operation}}
        self.path(self.next).write_text("".join(json.dumps(action) + "\n" for action in [info, *actions]))
        self.next += 1
        return self.next - 1

    def append(self, *names: str, size: int = 10) -> int:
        return self.commit(*(add(name, size) for name in names))

    def path(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def drop(self) -> None:
        shutil.rmtree(self.folder)


def source(**changes: Any) -> DeltaTable:
    return DeltaTable("table", **changes)


def files(planned: Planned) -> list[str]:
    return [file["path"] for file in planned.splits["files"]]
