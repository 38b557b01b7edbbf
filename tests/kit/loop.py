"""The loop of `tidegate run` on a toy world, with what it tells its observer."""

from __future__ import annotations

import os

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.execution.loop import Observer, Schedule, run_checkpoints

DEAD = f"process:{os.uname().nodename}:999999999::0011"


class Session:
    """No Spark: toys need none."""

    def __init__(self):
        self.dropped = 0

    def __call__(self):
        return None

    def drop(self):
        self.dropped += 1


class Told(Observer):
    def __init__(self):
        self.events = []

    def waiting(self, why):
        self.events.append(("waiting", why))

    def planned(self, plan):
        self.events.append(("planned", plan.id))

    def retrying(self, plan, error, tries_left):
        self.events.append(("retrying", plan.id, tries_left))

    def decided(self, plan, outcome, acks, seconds):
        self.events.append((outcome.state, plan.id))

    def stuck(self, table, error):
        self.events.append(("stuck", table))

    def of(self, kind):
        return [event[1] for event in self.events if event[0] == kind]


class Loop:
    """A world, a loop in it, and time that passes only by sleeping."""

    def __init__(self, root):
        self.world = ToyWorld(root)
        self.session = Session()
        self.told = Told()
        self.slept = []
        self.while_asleep = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        assert len(self.slept) < 200, "it waits for ever"
        if self.while_asleep:
            self.while_asleep.pop(0)()

    def run(self, **schedule):
        with seams.installed(seams.Seams(sleep=self.sleep, monotonic=lambda: sum(self.slept))):
            return run_checkpoints(self.world.coordinator(), self.session, Schedule(**schedule), self.told)
