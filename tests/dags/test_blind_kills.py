"""Three checkpoints under a real scheduler while somebody kills processes: tasks, workers, and the Spark server.

Whom and when is drawn from a seed; what it meets there is chance. KILLS_SEED replays the draws.
"""

from __future__ import annotations

import os
import random
import signal
import time

from tests.dags import processes
from tests.dags.server import Airflow
from tests.kit.waiting import eventually
from tidegate.spark.server import server as connect_server

SEED = int(os.environ.get("KILLS_SEED", "1"))
FILES = 3
KILLS = 5
VICTIMS = ("task", "task", "worker", "spark")


def test_three_checkpoints_under_blind_kills_equal_the_reference(airflow: Airflow):
    made = airflow.project.pipeline("blind", interval="2 s").feed(FILES)
    airflow.known("blind")
    draw = random.Random(SEED)
    killed: list[str] = []

    def kill_one() -> bool:
        victim = draw.choice(VICTIMS)
        time.sleep(draw.uniform(0.0, 2.0))  # no synchronisation: it is to hit anything
        killed.extend(kill(airflow, victim))
        return len(killed) >= KILLS

    eventually(f"{KILLS} are killed (seed {SEED})", kill_one, 240)
    eventually(
        f"all input is in the tables (seed {SEED}, killed {killed}, {made.outcomes()})",
        lambda: len(made.rows_or_none("every")) >= FILES * made.ROWS and len(made.published) == len(made.completed),
        240,
    )
    made.check(FILES)
    airflow.call("PATCH", "/dags/blind", {"is_paused": True})


def kill(airflow: Airflow, victim: str) -> list[str]:
    """Kill one of that kind, if there is one."""
    if victim == "spark":
        pids = [server.pid for server in connect_server.status(airflow.project.folder / ".tidegate" / "spark")]
    else:  # only a worker with a task: an idle one may hold the lock of Airflow's queue, and the kernel keeps it
        running = processes.tasks(airflow.processes["scheduler"].pid)
        pids = [worker if victim == "worker" else task for worker, task in running]
    for pid in pids[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return []
    return [victim] * len(pids[:1])
