"""The command line on real Spark: the example from feed to doctor, a second run, Ctrl-C once and twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobs import orders_feed
from tests.kit.example import Expected, sent, two_files_each_time
from tests.kit.jvm import INTERPRETED, toml
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=110)

ROOT = Path(__file__).resolve().parents[2]
ROWS = 60
PATIENCE_S = 180.0

SLOW = '''
"""One checkpoint a file; its rows wait in Spark until the file `release` is there."""
import os
import time

from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

HOME = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("slow")
events = pipeline.source("events", Files("landing/*.json", schema="id long", max_files=1))


def held(id):
    open(f"{HOME}/holding", "w").close()
    while not os.path.exists(f"{HOME}/release"):
        time.sleep(0.05)
    return id


@pipeline.stage(events)
def waits(events):
    from pyspark.sql.functions import udf

    return events.select(udf(held, "long")("id").alias("id"))


waits.sink("rows", DeltaAppend("tables/rows"))
'''

BROKEN = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("broken")
events = pipeline.source("events", Files("landing/*.json", schema="id long"))


@pipeline.stage(events)
def fails(events):
    return events.select("no_such_column")


fails.sink("rows", DeltaAppend("tables/rows"))
"""


@dataclass
class Project:
    """A project folder of its own below one that holds the Spark server for all of them."""

    home: Path
    name: str

    @property
    def data(self) -> Path:
        return self.home / self.name

    def command(self, *words: str) -> list[str]:
        place = ["-D", f"root={self.name}/ledger", "-D", f"data={self.name}"]
        return [sys.executable, "-m", "tidegate", *words, *place]

    def tidegate(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*words), cwd=self.home, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.tidegate(*words, "--json", code=code).stdout)

    def rows(self, pipeline: str, sink: str, *words: str) -> list[dict[str, Any]]:
        found = self.json("read", pipeline, sink, "--limit", "1000000", *words)
        assert len(found["rows"]) == found["total"]
        return found["rows"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One project folder, so one Spark server, for the whole module."""
    home = tmp_path_factory.mktemp("project")
    for name in ("jobs", "include/expectations"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    two_files_each_time(home)
    (home / "slow.py").write_text(SLOW)
    settings = '[spark]\nmemory = "1g"\nmaster = "local[2]"\nidle_timeout = "2 min"\n'
    (home / "tidegate.toml").write_text(settings + toml(INTERPRETED))
    yield home
    subprocess.run([sys.executable, "-m", "tidegate", "spark", "stop"], cwd=home, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def orders(home: Path) -> Project:
    """The example after `make run`: ten files fed, five checkpoints made."""
    project = Project(home, "orders")
    orders_feed.feed(project.data, files=10, rows=ROWS)
    made = project.json("run", "jobs.orders:pipeline", "--checkpoints", "5")
    assert [(c["id"], c["state"]) for c in made["checkpoints"]] == [(n, "completed") for n in range(1, 6)]
    return project


# -- the example -----------------------------------------------------------------------------------------


def expect_tables(project: Project, checkpoints: int) -> None:
    expected = Expected(2 * checkpoints, 2 * checkpoints, ROWS)
    at = ("--checkpoint", str(checkpoints))
    totals = {
        row["customer_id"]: (Decimal(row["spent"]), row["orders"], datetime.fromisoformat(row["last"]))
        for row in project.rows("orders", "totals", *at)
    }
    assert totals == expected.totals
    revenue = project.rows("orders", "revenue", *at) if expected.revenue else []
    found = Counter(
        (datetime.fromisoformat(row["window_start"]), row["country"], Decimal(row["revenue"]), row["orders"])
        for row in revenue
    )
    assert found == Counter((*key, *value) for key, value in expected.revenue.items())
    aside = Counter(why(row) for row in project.rows("orders", "quarantine.checked", *at))
    assert aside == expected.quarantine


def why(row: dict[str, Any]) -> str:
    if row["_corrupt_record"] is not None:
        return "not readable"
    return "no order id" if row["order_id"] is None else "no time" if row["at"] is None else "bad amount"


def test_the_feed_holds_what_the_example_is_about():
    fed = list(sent(range(1, 11), ROWS))
    assert {why for _, why in fed} == {None, "not readable", "no order id", "no time", "bad amount"}
    ids = [order["order_id"] for order, why in fed if why is None]
    assert max(Counter(ids).values()) == 2
    assert ids != sorted(ids), "nothing comes late"
    expected = Expected(10, 10, ROWS)
    assert 0.8 < len(expected.paid) / len(expected.good) < 1
    assert expected.revenue, "no minute is complete"
    assert len(Expected(10, 9, ROWS).paid) < len(expected.paid), "a payment never comes in another file than its order"


def test_the_tables_hold_what_was_fed(orders):
    expect_tables(orders, 5)


def test_every_checkpoint_can_be_read_as_it_was(orders):
    for checkpoints in (1, 3):
        expect_tables(orders, checkpoints)


def test_list_show_and_explain_tell_of_it(orders):
    listed = orders.json("list", "orders")["checkpoints"]
    assert [(c["id"], c["state"]) for c in listed[-5:]] == [(n, "completed") for n in range(5, 0, -1)]
    shown = orders.json("show", "orders", "3")
    assert {"revenue", "totals", "quarantine.checked", "state.totals"} <= set(shown["tables"])
    assert shown["records"]["plan"]["config"]["interval"] == "1 min"
    story = orders.json("explain", "jobs.orders:pipeline", "3")
    assert story["changes"] == ["Settings and code are those of checkpoint 2."]
    assert story["waits_for"] == []
    assert "2 of 6 files" in " ".join(story["events"])


def test_what_operators_remember_can_be_read_and_compared(orders):
    early, late = Expected(6, 6, ROWS).totals, Expected(10, 10, ROWS).totals
    for checkpoint, totals in (("3", early), ("5", late)):
        state = orders.json("state", "orders", "totals", "--checkpoint", checkpoint, "--limit", "1000")
        assert state["keys"] == ["customer_id"]
        assert {row["customer_id"]: (Decimal(row["spent"]), row["orders"]) for row in state["rows"]} == {
            customer: value[:2] for customer, value in totals.items()
        }
        assert state["total"] == len(totals)
    customer = next(iter(early))
    one = orders.json("state", "orders", "totals", "--where", f"customer_id = {customer}")
    assert [row["orders"] for row in one["rows"]] == [late[customer][1]]
    assert "VERSION AS OF" in orders.tidegate("state", "orders", "totals", "--sql").stdout
    listed = orders.json("state", "orders", "--checkpoint", "5")["states"]
    assert [s["operator"] for s in listed] == ["once", "paid.left", "paid.right", "revenue", "totals"]

    changed = sum(early[each] != late[each] for each in early)
    found = orders.json("diff", "orders", "3", "5")
    assert found["states"]["totals"] == {"added": len(late) - len(early), "changed": changed, "removed": 0}
    assert found["tables"]["totals"]["rows"] == [len(early), len(late)]
    assert all(source["changed"] for source in found["sources"].values())
    assert found["code_changed"] is False
    rows = orders.json("diff", "orders", "3", "5", "totals", "--limit", "1000")["rows"]
    for row in rows:
        known = early.get(row["customer_id"])
        assert row["change"] == ("changed" if known else "added")
        assert (row["orders before"], row["orders after"]) == (known and known[1], late[row["customer_id"]][1])
    assert len(rows) == len(late) - len(early) + changed
    back = orders.json("diff", "orders", "5", "3")["states"]["totals"]
    assert back == {"added": 0, "changed": changed, "removed": len(late) - len(early)}


def test_a_state_that_is_not_there_or_a_wrong_condition_is_refused(orders):
    assert "once or paid.left" in orders.tidegate("state", "orders", "total", code=2).stderr
    said = orders.tidegate("state", "orders", "totals", "--where", "customer = 1", code=2).stderr
    assert "--where 'customer = 1' is not a condition on this state" in said
    assert "no state of an operator 'total'" in orders.tidegate("diff", "orders", "3", "5", "total", code=2).stderr


def test_doctor_finds_nothing_wrong(orders):
    found = orders.json("doctor", "jobs.orders:pipeline")
    assert found["ok"] is True
    assert {f["state"] for f in found["findings"] if f["area"] == "orders"} == {"ok"}


def test_a_second_run_continues_where_the_first_stopped(orders):
    orders_feed.feed(orders.data, files=2, rows=ROWS)
    said = orders.tidegate("run", "jobs.orders:pipeline", "--until-idle")
    assert "checkpoint 6 completed" in said.stdout
    assert "checkpoint 7" not in said.stdout
    assert "Sinks of orders" in said.stdout
    expect_tables(orders, 6)
    idle = orders.json("run", "jobs.orders:pipeline", "--until-idle")
    assert idle["checkpoints"] == []


def test_a_stage_that_fails_is_told_and_explained_and_mended(home):
    project = Project(home, "broken")
    (project.data / "landing").mkdir(parents=True)
    (project.data / "landing" / "1.json").write_text('{"id": 1}\n')
    (home / "broken.py").write_text(BROKEN)
    said = project.tidegate("run", "broken:pipeline", "--until-idle", code=2)
    assert "checkpoint 1 aborted: BAD_DECLARATION: " in said.stdout
    assert "no_such_column" in said.stderr
    assert "Traceback" not in said.stderr
    assert "BAD_DECLARATION" in project.tidegate("explain", "broken", "1").stdout
    (home / "broken.py").write_text(BROKEN.replace("no_such_column", "id"))
    project.tidegate("run", "broken:pipeline", "--until-idle")
    assert project.rows("broken", "rows") == [{"id": 1}]
    assert "code changed since" not in project.tidegate("explain", "broken", "2").stdout  # 1 is no base of it


# -- Ctrl-C ----------------------------------------------------------------------------------------------


def wait_for(what: str, condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"ended before {what}: {process.communicate()}"
        assert time.monotonic() < until, f"no {what}"
        time.sleep(0.02)


@pytest.fixture
def slow(home: Path) -> Iterator[Project]:
    """A pipeline with three files to read, whose rows wait in Spark for a file `release`."""
    project = Project(home, "slow")
    (home / "slow" / "landing").mkdir(parents=True)
    for number in (1, 2, 3):
        (home / "slow" / "landing" / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    yield project
    (home / "release").touch()  # whatever still waits in Spark may go
    shutil.rmtree(home / "slow")


@pytest.fixture
def running(home: Path, slow: Project) -> Iterator[subprocess.Popen[str]]:
    """`tidegate run` in a process group of its own, as a shell would start it, its first checkpoint held in Spark."""
    for name in ("release", "holding"):
        (home / name).unlink(missing_ok=True)
    process = subprocess.Popen(
        slow.command("run", "slow:pipeline", "--checkpoints", "3"),
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for("checkpoint at work", (home / "holding").exists, process)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """What a terminal does: SIGINT to the whole foreground group."""
    os.killpg(process.pid, signal.SIGINT)


def states(project: Project) -> list[tuple[int, str, str]]:
    return [(c["id"], c["state"], c["reason"]) for c in project.json("list", "slow")["checkpoints"]]


def test_ctrl_c_stops_after_the_running_checkpoint(home, slow, running):
    press_ctrl_c(running)
    assert running.stderr is not None
    assert "stopping after the running checkpoint" in running.stderr.readline()
    assert running.poll() is None
    (home / "release").touch()
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, err
    assert "checkpoint 1 completed" in out
    assert states(slow) == [(1, "completed", "")]
    assert [row["id"] for row in slow.rows("slow", "rows")] == [1]


def test_a_second_ctrl_c_aborts_it_and_the_next_run_takes_its_input(home, slow, running):
    press_ctrl_c(running)
    assert running.stderr is not None
    assert "stopping after the running checkpoint" in running.stderr.readline()
    press_ctrl_c(running)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1, err
    assert "the running checkpoint was aborted" in out
    assert "Traceback" not in err
    assert states(slow) == [(1, "aborted", "CANCELLED")]
    assert not (slow.data / "tables" / "rows" / "_delta_log").exists()
    (home / "release").touch()
    slow.tidegate("run", "slow:pipeline", "--until-idle")
    assert sorted(row["id"] for row in slow.rows("slow", "rows")) == [1, 2, 3]
    assert "a person stopped it" in slow.tidegate("explain", "slow", "1").stdout
    doctor = slow.json("doctor", "slow:pipeline", "--repair")
    assert doctor["ok"] is True


def test_a_job_that_hangs_in_spark_ends_with_the_timeout_and_the_next_run_takes_its_input(home, slow):
    """Else the run would wait forever: nothing here lets the rows go before the timeout."""
    (home / "release").unlink(missing_ok=True)
    words = slow.command("run", "slow:pipeline", "--checkpoints", "1", "-D", "timeout=10 s")
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "checkpoint 1's timeout of 10 s" in done.stdout + done.stderr
    ((id, state, _),) = states(slow)
    assert (id, state) == (1, "aborted")
    (home / "release").touch()
    slow.tidegate("run", "slow:pipeline", "--until-idle")
    assert sorted(row["id"] for row in slow.rows("slow", "rows")) == [1, 2, 3]
