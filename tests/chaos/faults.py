"""What is done to a deployment. Each fault is drawn by a seed; whom it meets, and where, is chance.

A fault answers with what it has done, or None if there was nobody to do it to. When it returns it is over: what it
stopped continues.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.deployment import CODE, COMPONENTS, python_workers
from tests.chaos.reference import NAME, RELEASED
from tidegate.spark.server.processes import identify, kill

if TYPE_CHECKING:
    from tests.chaos.chaos import Chaos

__all__ = ["FAULTS", "Fault"]

Fault = Callable[["Chaos", random.Random], str | None]
_SPARED_S = 60.0
"""A component is not killed again so soon: `up` is right to give up one that never stays up."""


def _kill(pids: Sequence[int], dice: random.Random, number: signal.Signals = signal.SIGKILL) -> str | None:
    process = identify(dice.choice(pids)) if pids else None
    return f"{process.pid}" if process and kill(process, number) else None


def _component(chaos: Chaos, dice: random.Random) -> str | None:
    living = chaos.deployment.components
    now = time.monotonic()
    names = [name for name in COMPONENTS if name in living and now - chaos.spared.get(name, -1e9) > _SPARED_S]
    if not names:
        return None
    name = dice.choice(names)
    chaos.spared[name] = now
    return name if kill(living[name], signal.SIGKILL) else None


def _worker(chaos: Chaos, dice: random.Random) -> str | None:
    return _kill(chaos.deployment.workers(), dice)


def _task(chaos: Chaos, dice: random.Random) -> str | None:
    return _kill(chaos.deployment.tasks(), dice)


def _jvm(chaos: Chaos, dice: random.Random) -> str | None:
    return _kill([each.pid for each in chaos.deployment.sparks()], dice)


def _watchdog(chaos: Chaos, dice: random.Random) -> str | None:
    return _kill([each.watchdog_pid for each in chaos.deployment.sparks()], dice)


def _python_worker(chaos: Chaos, dice: random.Random) -> str | None:
    return _kill([pid for each in chaos.deployment.sparks() for pid in python_workers(each.pid)], dice)


def _up(chaos: Chaos, dice: random.Random) -> str | None:
    """Killed with all that it watches over left behind, and started again."""
    deployment = chaos.deployment
    assert deployment.up is not None
    deployment.up.kill()
    deployment.up.wait()
    chaos.wait(dice.uniform(0, 5))
    deployment.start()
    return "and started again"


def _stand_still(chaos: Chaos, dice: random.Random, pids: Sequence[int], longest: float) -> str | None:
    process = identify(dice.choice(pids)) if pids else None
    if process is None:
        return None
    chaos.deployment.stopped.add(process)
    seconds = dice.uniform(1, longest)
    if not kill(process, signal.SIGSTOP):
        return None
    chaos.wait(seconds)
    chaos.deployment.go_on()
    return f"{process.pid} for {seconds:.0f} s"


def _stop_jvm(chaos: Chaos, dice: random.Random) -> str | None:
    return _stand_still(chaos, dice, [each.pid for each in chaos.deployment.sparks()], 25)


def _stop_task(chaos: Chaos, dice: random.Random) -> str | None:
    return _stand_still(chaos, dice, chaos.deployment.tasks(), 25)


def _stop_worker(chaos: Chaos, dice: random.Random) -> str | None:
    return _stand_still(chaos, dice, chaos.deployment.workers(), 60)


def _stop_component(chaos: Chaos, dice: random.Random) -> str | None:
    return _stand_still(chaos, dice, [each.pid for each in chaos.deployment.components.values()], 30)


def _full_disk(chaos: Chaos, dice: random.Random) -> str | None:
    if not chaos.deployment.small_disk:
        return None
    seconds = dice.uniform(2, 15)
    chaos.deployment.fill_disk()
    chaos.wait(seconds)
    chaos.deployment.empty_disk()
    return f"for {seconds:.0f} s"


# -- what people do in Airflow -------------------------------------------------------------------------


def _run_path(chaos: Chaos, dice: random.Random) -> str | None:
    runs = chaos.deployment.airflow_runs()
    return f"/dags/{NAME}/dagRuns/{dice.choice(runs)['dag_run_id']}".replace("+", "%2B") if runs else None


def _clear(chaos: Chaos, dice: random.Random) -> str | None:
    path = _run_path(chaos, dice)
    if path is None:
        return None
    run = path.rpartition("/")[2].replace("%2B", "+")
    tasks = dice.choice([None, ["trigger"], ["job_main"], ["job_second"], ["complete"]])
    body = {"dry_run": False, "only_failed": False, "dag_run_id": run} | ({"task_ids": tasks} if tasks else {})
    done = chaos.deployment.airflow("POST", f"/dags/{NAME}/clearTaskInstances", body)
    return f"{', '.join(tasks or ['all'])} of {run}" if done else None


def _mark_task(chaos: Chaos, dice: random.Random) -> str | None:
    path = _run_path(chaos, dice)
    task = dice.choice(["trigger", "job_main", "job_second", "complete"])
    state = dice.choice(["success", "failed"])
    done = path and chaos.deployment.airflow("PATCH", f"{path}/taskInstances/{task}", {"new_state": state})
    return f"{task} {state}" if done else None


def _mark_run(chaos: Chaos, dice: random.Random) -> str | None:
    path = _run_path(chaos, dice)
    state = dice.choice(["success", "failed"])
    return state if path and chaos.deployment.airflow("PATCH", path, {"state": state}) else None


def _delete_run(chaos: Chaos, dice: random.Random) -> str | None:
    runs = [run["dag_run_id"] for run in chaos.deployment.airflow_runs() if run["state"] in ("success", "failed")]
    if not runs:
        return None
    run = dice.choice(runs)
    # It answers with nothing: what counts is that it is not there any more.
    chaos.deployment.airflow("DELETE", f"/dags/{NAME}/dagRuns/{run}".replace("+", "%2B"))
    return None if run in {each["dag_run_id"] for each in chaos.deployment.airflow_runs()} else run


def _pause(chaos: Chaos, dice: random.Random) -> str | None:
    seconds = dice.uniform(2, 15)
    path = f"/dags/{NAME}?update_mask=is_paused"
    if not chaos.deployment.airflow("PATCH", path, {"is_paused": True}):
        return None
    chaos.wait(seconds)
    chaos.unpause()
    return f"for {seconds:.0f} s"


# -- what people do with tidegate ----------------------------------------------------------------------


def _suspend(chaos: Chaos, dice: random.Random) -> str | None:
    code, _ = chaos.tidegate("suspend", NAME, "--reason", "chaos")
    chaos.wait(dice.uniform(0, 10))
    chaos.resume()
    return "and resumed" if code == 0 else None


def _retained(chaos: Chaos) -> list[int]:
    """The completed checkpoints that there still are, the oldest first."""
    return sorted(id for id in chaos.reader.published if chaos.deployment.ledger.is_retained(id))


def _roll_back(chaos: Chaos, dice: random.Random) -> str | None:
    retained = _retained(chaos)
    if not retained:
        return None
    to = dice.choice(retained[-6:])
    words = ["--retract", "once"] if chaos.foreign else []
    code, _ = chaos.tidegate("rollback", CODE, "--to", str(to), "--yes", *words)
    return f"to {to}" if code == 0 else None


def _savepoint(chaos: Chaos, dice: random.Random) -> str | None:
    code, _ = chaos.tidegate("savepoint", "create", NAME, f"s{time.monotonic_ns()}")
    return "created" if code == 0 else None


def _perhaps_killed(chaos: Chaos, dice: random.Random, longest: float, *words: str) -> int:
    """A command that takes a while, and that may be killed or interrupted meanwhile. Its exit code."""
    deployment = chaos.deployment
    with (deployment.log.parent / "commands.log").open("ab") as log:
        made = subprocess.Popen(
            deployment.project.command(*words),
            cwd=deployment.project.folder,
            env=deployment.project.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    end = dice.choice([signal.SIGKILL, signal.SIGINT, None, None])
    with contextlib.suppress(subprocess.TimeoutExpired):
        made.wait(dice.uniform(2, 20) if end else longest)
    if made.poll() is None:
        made.send_signal(end or signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.wait(30)
    if made.poll() is None:
        made.kill()
    return made.wait()


def _second_run(chaos: Chaos, dice: random.Random) -> str | None:
    """Checkpoints are also made without Airflow, by a process that may be killed."""
    return f"ended with {_perhaps_killed(chaos, dice, 60, 'run', CODE, '--checkpoints', '1')}"


def _backfill(chaos: Chaos, dice: random.Random) -> str | None:
    """What was read lately is read again by the same code, and swapped in: no row may change. One that was killed is
    continued or discarded the next time."""
    own_rows = ["--retract", "once"] if chaos.foreign else []
    if (name := chaos.backfill) is not None:
        if dice.random() < 0.3:
            return f"{name} discarded" if chaos.discard_backfill() else None
        code = _perhaps_killed(chaos, dice, 120, "backfill", CODE, "--name", name, "--swap", "--yes", *own_rows)
    else:
        retained = _retained(chaos)
        if not retained:
            return None
        chaos.backfills += 1
        chaos.backfill = name = f"again{chaos.backfills}"
        begin = ["--from", str(dice.choice(retained[-4:])), "--cuts", "recorded", "--name", name]
        code = _perhaps_killed(chaos, dice, 120, "backfill", CODE, *begin, "--swap", "--yes", *own_rows)
    if code in (0, 2):  # swapped in; or killed before it had begun
        chaos.backfill = None
    return f"{name} {'swapped in' if code == 0 else f'ended with {code}'}"


def _release(chaos: Chaos, dice: random.Random) -> str | None:
    """Rows that wait in quarantine are corrected and let continue."""
    words = ("quarantine", "release", NAME, "checked", "--all", "--set", f"v={RELEASED}", "--yes")
    code, _ = chaos.tidegate(*words)
    return "all that wait" if code == 0 else None


def _away(chaos: Chaos, dice: random.Random) -> str | None:
    """Somebody deletes a table by hand, puts it back from a copy, and resumes the pipeline, as it says then."""
    table = dice.choice(["once", "totals", "tens"])
    folder = chaos.deployment.store / "tables" / table
    kept = folder.with_name(f"{table}.kept")
    seconds = dice.uniform(2, 12)
    with chaos.reader.nobody_looks:
        if not folder.is_dir():
            return None
        folder.rename(kept)
        chaos.wait(seconds)
        while kept.is_dir():
            _move_files(folder, kept)
            with contextlib.suppress(OSError):  # somebody has written there again
                kept.rename(folder)
    chaos.resume()
    return f"{table} for {seconds:.0f} s"


def _move_files(folder: Path, to: Path) -> None:
    """What was written where the table no longer was belongs to it, unless it has that."""
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        target = to / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            file.unlink()
        else:
            file.rename(target)
    shutil.rmtree(folder, ignore_errors=True)


def _second_writer(chaos: Chaos, dice: random.Random) -> str | None:
    """Somebody else adds a row to a table of the pipeline."""
    return chaos.write_foreign()


FAULTS: dict[str, tuple[int, Fault]] = {
    "kill component": (4, _component),
    "kill worker": (3, _worker),
    "kill task": (4, _task),
    "kill JVM": (3, _jvm),
    "kill watchdog": (1, _watchdog),
    "kill Python worker": (2, _python_worker),
    "kill up": (1, _up),
    "stop JVM": (2, _stop_jvm),
    "stop task": (2, _stop_task),
    "stop worker": (1, _stop_worker),
    "stop component": (1, _stop_component),
    "full disk": (2, _full_disk),
    "clear": (3, _clear),
    "mark task": (2, _mark_task),
    "mark run": (1, _mark_run),
    "delete run": (2, _delete_run),
    "pause": (1, _pause),
    "suspend": (1, _suspend),
    "roll back": (2, _roll_back),
    "savepoint": (1, _savepoint),
    "second run": (2, _second_run),
    "second writer": (3, _second_writer),
    "backfill": (3, _backfill),
    "release": (2, _release),
    "table away": (1, _away),
}
"""How often each is drawn, relative to the others."""
