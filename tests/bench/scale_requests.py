"""The requests of one checkpoint whose ledger and tables are in a bucket: one job, ten tables, as the server counts.

The control plane only: trigger, the job's ack, the decision, and publishing. What a job reads and stages is not in it,
nor is what only the first checkpoint of a pipeline does. Clients of object stores do not survive a fork, so this is a
process of its own.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from typing import Any

from tests.bench.harness import ROOT

TABLES = 10
WARMUPS = 2
"""The first ones make the tables, and try the stores out."""


def in_fresh_process(rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.scale_requests", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that counts requests failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def count(rounds: int) -> dict[str, Any]:
    """The requests of the cheapest round: none is retried there."""
    from tests.bench import scale_worlds as worlds
    from tests.kit.s3 import BUCKET, s3

    names = [f"table{number}" for number in range(TABLES)]
    with s3() as server:
        root = f"s3://{BUCKET}/scale"
        control = worlds.ticking(root, names, server.options)
        counted: list[dict[str, dict[str, int]]] = []
        for number in range(1, WARMUPS + rounds + 1):
            staged = {name: worlds.stage(control, name, number) for name in names}
            steps: dict[str, dict[str, int]] = {}
            with server.counted() as steps["trigger"]:
                plan = worlds.triggered(control)
            with server.counted() as steps["ack"]:
                worlds.ack(control.ledger, plan, staged)
            with server.counted() as steps["complete"]:
                outcome = control.complete(plan.id)
            with server.counted() as steps["publish"]:
                report = control.publish()
            assert (plan.id, outcome.state, report.stuck) == (number, "completed", {}), (plan.id, outcome, report)
            counted.append(steps)
        last = control.ledger.ids()[-1]
        wrong = [
            f"{name} is at checkpoint {found}, expected {last}"
            for name in names
            if (found := control.graph.sinks[name].sink.head(control.context(name)).last_entry) != last
        ]
    steps = min(counted[WARMUPS:], key=lambda each: sum(sum(by.values()) for by in each.values()))
    by_method: collections.Counter[str] = collections.Counter()
    for methods in steps.values():
        by_method.update(methods)
    return {
        "by_method": dict(sorted(by_method.items())),
        "by_step": {name: sum(methods.values()) for name, methods in steps.items()},
        "wrong": wrong,
    }


if __name__ == "__main__":
    print(json.dumps(count(int(sys.argv[1]))))
