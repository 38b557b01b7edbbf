"""Publishers that are killed or stopped at any moment, several at once, and a server that crashes: rows are counted.

TIDEGATE_KILLS=200 makes it the long form; without it, it is short enough for every run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.connectors.postgres_publisher import SINKS
from tests.kit.postgres import MISSING, programs, server
from tests.kit.postgres_sinks import PostgresPublished, connections
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.records.place import Place

pytestmark = in_turn(seconds=80)


KILLS = int(os.environ.get("TIDEGATE_KILLS", "6"))
ROWS = 10_000
MODULE = "tests.connectors.postgres_publisher"


class Publishing:
    """A server, staged checkpoints, and the processes that publish them."""

    def __init__(self, folder, postgres, sink, checkpoints):
        self.folder, self.postgres, self.sink, self.checkpoints = folder, postgres, sink, checkpoints
        self.place = Place(str(folder), connections=connections(postgres))
        self.published = PostgresPublished(folder, self.place, SINKS[sink]())
        self.staged = [self.published.stage(id, *self.rows(id)) for id in range(1, checkpoints + 1)]
        self.processes = []

    def rows(self, id):
        """Of an append: new rows. Of an upsert: half of the keys change, half are new, and a tenth is removed."""
        if self.sink == "append":
            return [(id * ROWS + number, f"{id}") for number in range(ROWS)]
        keys = range(id * ROWS // 2, id * ROWS // 2 + ROWS)
        return [(key, f"{id}", key % 10 == id % 10) for key in keys]

    def expected(self):
        """What the table must hold in the end."""
        found = {}
        for id in range(1, self.checkpoints + 1):
            for key, value, *removed in self.rows(id):
                found[key] = value
                if removed and removed[0]:
                    del found[key]
        return sorted(found.items())

    def start(self, **more):
        file = self.folder / f"publisher-{len(self.processes)}.json"
        settings = {"folder": str(self.folder), "connections": dict(self.place.connections)}
        file.write_text(json.dumps(settings | {"sink": self.sink, "staged": self.staged} | more))
        words, root = [sys.executable, "-m", MODULE, str(file)], Path(__file__).parents[2]
        process = subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        return process

    def last(self):
        return self.published.head().last_entry or 0

    def check(self):
        assert self.last() == self.checkpoints
        assert self.postgres.run("SELECT k, v FROM t ORDER BY k") == self.expected()

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(30)


@pytest.fixture
def publishing(tmp_path, postgres):
    with contextlib.ExitStack() as stack:

        def make(sink, checkpoints, on=postgres):
            made = Publishing(tmp_path, on, sink, checkpoints)
            stack.callback(made.end)
            return made

        yield make


def moments(count):
    """Different waits in seconds, the same in every run, from at once to longer than some publishes take."""
    return [0.6 * (number * 0.618 % 1) for number in range(count)]


@pytest.mark.parametrize("sink", sorted(SINKS))
def test_publishers_that_are_killed_at_any_moment_lose_and_double_nothing(publishing, sink):
    world, kills = publishing(sink, 4 * KILLS), 0
    for wait in itertools.islice(itertools.cycle(moments(KILLS)), KILLS):
        first, second = world.start(), world.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(wait)
        for process in (first, second):
            kills += process.poll() is None
            process.kill()
            process.wait(30)
    assert kills >= 2, "the first two, at once; how many others were still at work is up to the machine"
    assert world.start().wait(120) == 0
    world.check()


@pytest.mark.parametrize("step", ["locked", "copying", "copied"])
def test_a_publisher_that_is_stopped_is_ended_by_the_next_one_and_changes_nothing_when_it_wakes(publishing, step):
    world = publishing("append", 2)
    stopped = world.start(stop_at=step)
    eventually("it is stopped", lambda: is_stopped(stopped.pid))
    awake = world.start(lock_seconds=1)
    assert awake.wait(120) == 0
    world.check()
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(60) == 0, "it finds that all is there"
    world.check()


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("sink", sorted(SINKS))
def test_a_server_that_crashes_while_rows_are_loaded_loses_and_doubles_nothing(publishing, sink):
    if programs() is None:
        pytest.skip(MISSING)
    with server() as crashing:  # with fsync, unlike the shared one
        world = publishing(sink, 12, on=crashing)
        for wait in moments(max(2, KILLS // 10)):
            process = world.start()
            time.sleep(wait)  # a moment like any other: nothing waits for this to have happened
            crashing.crash()
            crashing.start()
            process.kill()
            process.wait(30)
        survivor = world.start()
        assert survivor.wait(120) == 0
        world.check()


def test_a_publisher_lives_through_a_restart_of_the_server(publishing):
    with server() as restarted:
        world = publishing("append", 12, on=restarted)
        process = world.start()
        eventually("it has begun", lambda: world.last() > 0)
        restarted.crash()
        restarted.start()
        assert process.wait(120) == 0
        world.check()
