"""The proof of exactly once: a pipeline from Kafka into Kafka, PostgreSQL and Delta, killed at random and counted.

    python -m tests.connectors.exactly_once --kills 200 --seed 1
    python -m tests.connectors.exactly_once --streaming --kills 20     Structured Streaming's Kafka sink beside it

Each round one fault happens while checkpoints are made and published:

    kill      the process is killed
    two       two processes make checkpoints at once, and both are killed
    sleep     a process is stopped for longer than its transactions may take, while another one works; then it wakes
    broker    the broker is killed and started again; the process lives on, or is killed, too
    database  the same with PostgreSQL
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.connectors.children import Child
from tests.connectors.story import (
    TRANSACTION_TIMEOUT_S,
    Payments,
    differences,
    last_payment,
    make_checkpoint,
    payments_of,
    send,
)
from tests.crash.spark import client, server
from tests.kit import postgres
from tests.kit.kafka import Broker, kafka
from tests.kit.postgres import Server
from tidegate import seams
from tidegate.errors import Fenced, Rejected, Unavailable

__all__ = ["Proof"]

FAULTS = ("kill", "kill", "kill", "two", "two", "sleep", "broker", "database")


@dataclass
class Proof:
    """One pipeline, and all that happens to it."""

    world: Payments
    broker: Broker
    database: Server
    spark: dict[str, Any]
    seed: int = 1
    portions: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    children: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.world.root.mkdir()
        self.broker.create_topic("payments", partitions=2)

    def run(self, kills: int) -> dict[str, str]:
        """Let so many faults happen, then let the pipeline finish. Return what is wrong in the end."""
        while sum(self.happened.values()) < kills:
            send(self.broker, payments_of(self.portions))
            self.portions += 1
            fault = self.dice.choice(FAULTS)
            self.happened[fault] += 1
            getattr(self, f"_{fault}")()
            print(f"{sum(self.happened.values())}/{kills} {fault}: {self.progress()}", flush=True)
        for number in (1, 2):
            self.start().ended(1800)
            send(self.broker, [last_payment(number)])
        self.start().ended(600)
        return differences(self.world, self.broker, self.database, self.portions)

    def progress(self) -> str:
        ids = self.world.ledger.ids()
        return f"{self.portions} portions, checkpoint {ids[-1] if ids else 0}"

    def start(self) -> Child:
        """Start a process that makes checkpoints until nothing is new."""
        self.children += 1
        return Child(self.world.root / f"child-{self.children}.log", _work, self.world, self.spark, self.children)

    def wait(self, longest: float = 8.0) -> None:
        time.sleep(self.dice.uniform(0.3, longest))

    def _kill(self) -> None:
        child = self.start()
        self.wait()
        child.kill()

    def _two(self) -> None:
        pair = [self.start(), self.start()]
        for child in pair:
            self.wait()
            child.kill()

    def _sleep(self) -> None:
        sleeping = self.start()
        self.wait()
        sleeping.stop()
        other = self.start()
        time.sleep(TRANSACTION_TIMEOUT_S + self.dice.uniform(1, 5))
        sleeping.wake()
        self.wait(4)
        sleeping.kill()
        other.kill()

    def _broker(self) -> None:
        self._restart(self.broker.kill, self.broker.start)

    def _database(self) -> None:
        self._restart(self.database.crash, self.database.start)

    def _restart(self, crash: Callable[[], None], start: Callable[[], None]) -> None:
        child = self.start()
        self.wait()
        crash()
        if self.dice.random() < 0.5:
            child.kill()
        start()
        self.wait()
        child.kill()


def _work(world: Payments, spark: dict[str, Any], number: int) -> None:
    """Make checkpoints until nothing is new: in a process of its own."""
    session, passes = client(spark), 0
    while True:
        passes += 1
        try:
            if make_checkpoint(world, f"run {number}-{passes}", session) is None:
                return
        except (Unavailable, Fenced, Rejected) as error:
            print(f"{seams.now()} {type(error).__name__}: {error}", flush=True)
            seams.sleep(0.5)


# -- beside it: Structured Streaming -----------------------------------------------------------------------


def streaming(folder: Path, broker: Broker, kills: int, seed: int) -> Counter[int]:
    """Let Structured Streaming send the same payments to Kafka, killed as often. Return how often each payment's id is
    there for a consumer that reads committed."""
    dice, portions, world = random.Random(seed), 0, Payments(folder, servers=broker.servers)
    broker.create_topic("streamed", partitions=3)
    for number in range(kills):
        portions += 30  # so that it is at work when it is killed
        world.land(portions)
        child = _query(folder, broker)
        assert child.stdout is not None
        next(line for line in child.stdout if "batch" in line)
        time.sleep(dice.uniform(0.0, 3.0))
        os.killpg(child.pid, signal.SIGKILL)  # with its JVM, which does the work
        child.wait()
        print(f"{number + 1}/{kills} streaming", flush=True)
    finishing = _query(folder, broker, "--to-the-end")
    finishing.communicate(timeout=600)
    ids = {row["id"] for number in range(portions) for row in payments_of(number)}
    found = Counter(json.loads(record.value or b"{}")["id"] for record in broker.read("streamed"))
    return Counter({id: found[id] for id in ids})


def _query(folder: Path, broker: Broker, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.connectors.streaming_query", str(folder), broker.servers, *more]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, start_new_session=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.exactly_once")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streaming", action="store_true", help="Structured Streaming's Kafka sink in place of ours")
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidegate-exactly-once-") as folder, kafka() as broker:
        root = Path(folder)
        if told.streaming:
            found = streaming(root, broker, told.kills, told.seed)
            lost, doubled = sum(not times for times in found.values()), sum(times > 1 for times in found.values())
            print(f"Structured Streaming: {len(found)} payments, {lost} lost, {doubled} more than once")
            return 0
        with server(root / "spark") as spark, postgres.server() as database:
            world = Payments(root / "world", servers=broker.servers, database=database.options)
            proof = Proof(world, broker, database, spark, told.seed)
            wrong = proof.run(told.kills)
        print(f"faults: {dict(proof.happened)}; {proof.progress()}")
        print("wrong:", json.dumps(wrong, indent=1) if wrong else "nothing: each row is there exactly once")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
