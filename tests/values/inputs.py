"""A small table of rows, cut into checkpoints, where a source reads it."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.values.edges import KINDS, NAMES, Edge, Kind
from tests.values.roles import Column
from tidegate.connectors.source import Source
from tidegate.pipeline import Pipeline, Stream
from tidegate.sources import DeltaTable, Files

__all__ = ["FORMATS", "Input"]

FORMATS = ("delta", "parquet", "json", "csv")
_IN_TIME = "timed-"
"""The beginning of names of files whose rows are in the order of the column: none of them is late."""
RAW = "raw"
"""The column of which a stage makes one of a type that sources do not have."""
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


DRIFTED = ("drifted, by a key", "drifted")
"""Keys that the schema lacks: no table can have the first one as a column."""


@dataclass(frozen=True)
class Drift:
    """Records with a further key: it is rescued, or becomes a column, and all else is read as without it."""

    since: int
    """The number of the first file whose records have it."""
    on_type: str
    on_new_column: str
    key: str

    @classmethod
    def of(cls, dice: random.Random, kind: Kind, format: str, files: int) -> Drift | None:
        """None: for inputs that have no policy, and for half of those that may have one."""
        if format not in ("json", "parquet", "csv") or "char(" in kind.type or dice.random() < 0.5:
            return None
        since, on_type = dice.randrange(files), dice.choice(["rescue", "widen", "refuse"])
        return cls(since, on_type, dice.choice(["rescue", "evolve"]), dice.choice(DRIFTED))

    @property
    def policy(self) -> dict[str, str]:
        return {"on_new_column": self.on_new_column, "on_type": self.on_type}

    @property
    def sql(self) -> str:
        """An expression for `id` that fails if anything else was rescued."""
        expected = [json.dumps({self.key: value}, separators=(",", ":")) for value in (True, "true")]
        rescued = ", ".join(f"'{text}'" for text in expected)  # all fields of CSV are texts
        return f"CASE WHEN _rescued IS NULL OR _rescued IN ({rescued}) THEN id ELSE raise_error(_rescued) END AS id"

    def __str__(self) -> str:
        return f"a further key {self.key!r} since file {self.since}, keys {self.on_new_column}, types {self.on_type}"


@dataclass(frozen=True)
class Input:
    """What a source reads: rows in SQL, in the order in which they arrive."""

    column: Column
    format: str
    values: tuple[Edge | None, ...]
    cuts: tuple[int, ...]
    """Where a checkpoint ends."""
    numbers: tuple[int, ...]
    """The column `n`."""
    drift: Drift | None = None
    """What the records of some checkpoints have besides, and what the source does then."""

    @classmethod
    def of(
        cls,
        dice: random.Random,
        kind: Kind | None = None,
        format: str | None = None,
        drift_dice: random.Random | None = None,
    ) -> Input:
        """drift_dice: draws the drift, so that all else is as it was before there was any."""
        kind = kind or dice.choice(list(KINDS.values()))
        format = format or dice.choice([each for each in FORMATS if each in kind.formats])
        able = [each for each in kind.edges if format in ("delta", "parquet") or not (each.far or each.no_text)]
        edges = tuple(dice.sample(able, min(len(able), dice.choice([1, 2, 3, 4]))))
        count = dice.choice([4, 6, 9, 12])
        values = tuple(dice.choice([*edges, *edges, None]) for _ in range(count))
        cuts = tuple(sorted(dice.sample(range(1, count), dice.choice([0, 1, 1, 1, 2, 2]))))
        numbers = tuple(dice.sample(range(count), count))
        named = [name for name in NAMES if format != "delta" or not set(name) & set(" ,;{}()=")]  # Spark refuses these
        drift = Drift.of(drift_dice, kind, format, len(cuts) + 1) if drift_dice is not None else None
        return cls(Column(dice.choice(named), kind, edges), format, values, cuts, numbers, drift)

    @property
    def made(self) -> bool:
        return bool(self.column.kind.made)

    @property
    def _name(self) -> str:
        """The column's name in the source, in backticks."""
        return RAW if self.made else self.column.quoted

    @property
    def schema(self) -> str:
        return f"id bigint, k string, n int, at timestamp, {self._name} {self.column.kind.type}"

    @property
    def sql(self) -> str:
        """All rows."""
        rows = []
        for place, value in enumerate(self.values):
            sql = f"CAST(NULL AS {self.column.kind.type})" if value is None else value.sql
            at = f"timestamp'2024-01-01 00:{place:02d}:00Z'"
            rows.append(f"({place}L, '{'xyz'[self.numbers[place] % 3]}', {self.numbers[place]}, {at}, {sql})")
        return f"SELECT * FROM VALUES {', '.join(rows)} AS t(id, k, n, at, {self._name})"

    @property
    def bounds(self) -> list[tuple[int, int]]:
        edges = [0, *self.cuts, len(self.values)]
        return list(itertools.pairwise(edges))

    def write(self, spark: Any, folder: Path) -> Any:
        """Put the rows where the source reads them, a file or a version for each checkpoint. Return them all, as Spark
        has them."""
        folder.mkdir(parents=True)
        frame = spark.sql(self.sql)
        if self.column.kind.time:
            self._write_parquet(frame.orderBy(self._name), folder, _IN_TIME)
        if self.format == "delta":
            for begin, end in self.bounds:
                part = frame.where(f"id >= {begin} AND id < {end}").coalesce(1)
                part.write.format("delta").mode("append").save(str(folder / "table"))
            return self._seen(spark.read.format("delta").load(str(folder / "table")))
        if self.format == "parquet":
            self._write_parquet(frame, folder, "")
            return self._seen(frame)
        from pyspark.sql import functions as F

        quoted = ["`" + name.replace("`", "``") + "`" for name in frame.columns]
        row = F.struct(*quoted)
        spaces = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
        is_json = self.format == "json"
        line = F.to_json(row, _TIMES) if is_json else F.to_csv(row, _TIMES | spaces | {"escape": '"'})
        lines = [each[0] for each in frame.select(line).collect()]
        drifted = self.drift.since if self.drift is not None else len(self.bounds)
        for number, (begin, end) in enumerate(self.bounds):
            names = list(frame.columns)
            if self.drift is not None and number >= drifted:
                names = [self.drift.key, *names]
                first = f"{{{json.dumps(self.drift.key)}:true," if is_json else "true,"
                lines[begin:end] = [f"{first}{each[1:] if is_json else each}" for each in lines[begin:end]]
            head = [_csv_line(names)] if self.format == "csv" else []
            text = "".join(each + "\n" for each in [*head, *lines[begin:end]])
            (folder / f"{number}.{self.format}").write_text(text, newline="")
        # Spark reads the fields of CSV by their place, and those of JSON by their name.
        key = self.drift.key if self.drift is not None else ""
        schemas = [self.schema] * drifted + [f"`{key}` string, {self.schema}"] * (len(self.bounds) - drifted)
        parts = []
        for number, schema in enumerate(schemas):
            reader = spark.read.schema(schema).options(**self.options).format(self.format)
            parts.append(reader.load(str(folder / f"{number}.{self.format}")).selectExpr(*quoted))
        return self._seen(functools.reduce(lambda one, other: one.unionAll(other), parts))

    def _write_parquet(self, frame: Any, folder: Path, prefix: str) -> None:
        rows = frame.toArrow()
        for number, (begin, end) in enumerate(self.bounds):
            part = rows.slice(begin, end - begin)
            if not prefix and self.drift is not None and number >= self.drift.since:
                part = part.append_column(self.drift.key, pyarrow.repeat(True, part.num_rows))
            pyarrow.parquet.write_table(part, folder / f"{prefix}{number}.parquet")

    @property
    def options(self) -> dict[str, str]:
        """Of Spark's reader, and of the source."""
        return {"header": "true", "escape": '"', "multiLine": "true"} if self.format == "csv" else {}

    def _seen(self, frame: Any) -> Any:
        """The rows as operators see them."""
        return frame.selectExpr(*self._stage()) if self.made else frame

    def _stage(self) -> list[str]:
        return ["id", "k", "n", "at", f"{self.column.kind.made} AS {self.column.quoted}"]

    def declare(self, pipeline: Pipeline, folder: Path) -> Stream:
        """The source, and the rows that operators see."""
        if self.format == "delta":
            return self._declared(pipeline, "rows", DeltaTable(str(folder / "table"), start=0, max_files=1), "at")
        pattern = str(folder / f"[0-9].{self.format}")
        policy: Any = self.drift.policy if self.drift is not None else {}
        source = Files(pattern, schema=self.schema, max_files=1, options=self.options, **policy)
        return self._declared(pipeline, "rows", source, "at", self.drift)

    def declare_in_time(self, pipeline: Pipeline, folder: Path) -> Stream:
        """Another source of the same rows, whose event time is the column."""
        source = Files(str(folder / f"{_IN_TIME}*.parquet"), schema=self.schema, max_files=1)
        return self._declared(pipeline, "timed", source, self.column.name)

    def _declared(
        self, pipeline: Pipeline, name: str, source: Source, event_time: str, drift: Drift | None = None
    ) -> Stream:
        rows = pipeline.source(name, source, bounded=pipeline.finishes, event_time=event_time, watermark="0 s")
        if drift is not None:
            rows = rows.select(drift.sql, "k", "n", "at", self._name, name=f"{name}-rescued")
        return rows.select(*self._stage(), name=f"{name}-made") if self.made else rows

    def __str__(self) -> str:
        edges = {each: str(place) for place, each in enumerate(self.column.edges)}
        rows = "".join("-" if each is None else edges[each] for each in self.values)
        cut = "|".join(rows[begin:end] for begin, end in self.bounds)
        values = ", ".join(each.sql[:80] for each in self.column.edges)
        drift = f" with {self.drift}" if self.drift is not None else ""
        return f"{self.column.kind.name} {self.column.name!r} from {self.format}{drift}: {cut} of {values}"


def _csv_line(names: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()
