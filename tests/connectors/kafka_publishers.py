"""Publishers of one Kafka sink, in processes of their own: they are killed, stopped and let race each other.

The rows of all checkpoints are staged beforehand, without Spark. A publisher does what tidegate's core does after each
decision: read the head, publish what comes next, and look again. It ends when all is published.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.connectors.children import Child
from tests.kit.kafka import Broker
from tidegate.connectors.kafka.sending import Sender
from tidegate.connectors.sink import Head, Publication, Staging
from tidegate.delta import Location, StagedFile
from tidegate.errors import Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import KafkaTopic, SinkContext

ROWS = 200
PARTITIONS = 3
TIMEOUT_S = 8.0
STEPS = ("fence", "begin", "sent", "mark", "committed")
"""fence      nothing is done yet
begin      the mark was read, no transaction is begun
sent       all rows are sent, the mark is not
mark       the mark is sent, too, and nothing is committed
committed  all is committed, and this process does not know it
"""


@dataclass
class Target:
    """A topic, and the sink of one pipeline that publishes to it."""

    servers: str
    topic: str
    folder: Path
    uid: str = "u1"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sink(self) -> KafkaTopic:
        told: dict[str, Any] = {"key": "id", "transaction_timeout": TIMEOUT_S}
        return KafkaTopic(self.topic, servers=self.servers, **told | self.options)

    @property
    def context(self) -> SinkContext:
        return SinkContext("p", self.uid, "s", Place(str(self.folder)), home=str(self.folder / "home"))

    def stage(self, id: int, rows: Sequence[tuple[str | None, str | None]], *, files: int = 2, **columns: Any) -> Json:
        """Stage keys and values as a job does; return the committable."""
        location, folder = Location(f"{self.context.home}/staged"), Staging(id, "a").folder(self.context) + "/rows"
        each = max(1, -(-len(rows) // files))
        listed = [
            self._write(location, f"{folder}/part-{number:05d}.parquet", rows[start : start + each])
            for number, start in enumerate(range(0, len(rows), each))
        ]
        return {"columns": {"type": "struct", "fields": []}, "files": listed, "removed_columns": None, "removed": []}

    def _write(self, location: Location, path: str, rows: Sequence[tuple[str | None, str | None]]) -> Json:
        keys, values = zip(*rows, strict=True)
        encoded = [[None if text is None else text.encode() for text in column] for column in (keys, values)]
        sizes = [len(key or b"") + len(value or b"") for key, value in zip(*encoded, strict=True)]
        types = [pa.binary(), pa.binary(), pa.int32()]
        table = pa.table(
            [pa.array(column, kind) for column, kind in zip([*encoded, sizes], types, strict=True)],
            names=["key", "value", "size"],
        )
        file = Path(location.full(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        return {"path": path, "size": file.stat().st_size, "rows": len(rows), "partition": {}, "stats": ""}

    def staged(self, id: int) -> Json:
        """Return the committable of a checkpoint that was staged before, by this process or another one."""
        location, folder = Location(f"{self.context.home}/staged"), Staging(id, "a").folder(self.context) + "/rows"
        files = [
            StagedFile(path=path, size=size, rows=pq.read_metadata(location.full(path)).num_rows)
            for path, size in sorted(location.walk(folder))
        ]
        listed = [{"path": f.path, "size": f.size, "rows": f.rows, "partition": {}, "stats": ""} for f in files]
        return {"columns": {"type": "struct", "fields": []}, "files": listed, "removed_columns": None, "removed": []}

    def publish(
        self, id: int, *committables: Json, head: Head | None = None, attempt: str = "m"
    ) -> PublishedTable | None:
        head = head or self.sink.head(self.context)
        return self.sink.publish(Publication(id, 0, attempt, head.last_entry, committables), head, self.context)

    def publish_upto(self, last: int) -> None:
        """Publish what is missing, whoever else does."""
        while True:
            try:
                head = self.sink.head(self.context)
                if (head.last_entry or 0) >= last:
                    return
                self.publish((head.last_entry or 0) + 1, self.staged((head.last_entry or 0) + 1), head=head)
            except Unavailable as error:
                print(error, file=sys.stderr, flush=True)


def rows_of(id: int, count: int = ROWS) -> list[tuple[str, str]]:
    """The keys and values of one checkpoint."""
    return [(f"{id}-{number}", f"value {number} of checkpoint {id}") for number in range(count)]


def refuse_differences(broker: Broker, topic: str, checkpoints: int, count: int = ROWS) -> None:
    """Every row is there once for readers that read committed: none is missing, none doubled, none beyond."""
    found = Counter((record.key, record.value) for record in broker.read(topic))
    expected = Counter(
        (key.encode(), value.encode()) for id in range(1, checkpoints + 1) for key, value in rows_of(id, count)
    )
    missing, beyond = expected - found, found - expected
    assert (sum(missing.values()), sum(beyond.values())) == (0, 0), (list(missing)[:3], list(beyond)[:3])


def publisher(target: Target, checkpoints: int, step: str = "") -> Child:
    """Start a process that publishes up to a checkpoint. With a step it stops itself there, at its first pass."""
    log = target.folder / f"publisher-{len(list(target.folder.glob('publisher-*')))}.log"
    log.touch()
    return Child(log, _publish, target, checkpoints, step)


# -- the process -----------------------------------------------------------------------------------


def stop_at(step: str) -> None:
    """Let this process stop itself when it comes to a step, once."""
    due = [step]

    def here(reached: str) -> None:
        if reached in due:
            due.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    real = {name: getattr(Sender, name) for name in ("fence_earlier_publishers", "begin", "commit")}

    class Stopping:
        """The producer, with a stop before and after it commits."""

        def __init__(self, producer: Any) -> None:
            self.producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self.producer, name)

        def commit_transaction(self, *arguments: Any) -> None:
            here("mark")
            self.producer.commit_transaction(*arguments)
            here("committed")

    def fence_others(sender: Sender) -> None:
        here("fence")
        real["fence_earlier_publishers"](sender)

    def begin(sender: Sender) -> None:
        here("begin")
        sender._producer = Stopping(sender._producer)
        real["begin"](sender)

    def commit(sender: Sender, *arguments: Any) -> None:
        here("sent")
        real["commit"](sender, *arguments)

    Sender.fence_earlier_publishers, Sender.begin, Sender.commit = fence_others, begin, commit  # type: ignore[method-assign]


def _publish(target: Target, checkpoints: int, step: str) -> None:
    if step:
        stop_at(step)
    target.publish_upto(checkpoints)
