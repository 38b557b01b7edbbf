"""Airflow's own backfill of the shipped example, by its dialog in a real Chromium: it computes again what a bug has
made, though a worker is killed; and where history is gone, it is refused before its first run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobs import orders_feed
from tests.dags.server import Airflow, Run
from tests.kit.example import Expected
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tests.ui.airflow_dialogs import fill_backfill, press, run_backfill
from tests.ui.browser import Browser, Page
from tidegate.ledger.ledger import Ledger, open_ledger

pytestmark = in_turn(seconds=400)

ROOT = Path(__file__).resolve().parents[2]
ROWS = 60
FILES = 10
FRAME = "document.querySelector('iframe')?.contentDocument"
CORRECT = 'return checked.drop("_corrupt_record")'
WRONG = 'return checked.drop("_corrupt_record").withColumn("amount", (checked.amount * 2).cast("decimal(12,2)"))'
HELD = f"""
    import os, pathlib, time
    if os.environ["AIRFLOW_CTX_DAG_ID"] == "orders__backfill":
        home = pathlib.Path({{home!r}})
        (home / f"at_work-{{{{os.getpid()}}}}").touch()
        while (home / "hold").exists():
            time.sleep(0.05)
    {CORRECT}
"""
"""The mended stage. In the replay it says which process it runs in, and waits for as long as the test holds it."""


class Example:
    """The shipped example in a real Airflow. A checkpoint takes half of the files."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        self.folder = airflow.project.folder
        for name in ("jobs", "include/expectations"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.code = self.folder / "jobs" / "orders.py"
        self.write("max_files=20", f"max_files={FILES // 2}", times=2)
        self.write('interval="1 min"', 'interval="30 s", min_pause="0 s"')
        self.write(CORRECT, WRONG)

    def write(self, before: str, after: str, times: int = 1) -> None:
        text = self.code.read_text()
        assert text.count(before) == times
        self.code.write_text(text.replace(before, after))

    def deploy(self) -> None:
        shutil.copy(ROOT / "dags" / "orders.py", self.airflow.project.dags / "orders.py")
        self.airflow.known("orders")

    @property
    def ledger(self) -> Ledger:
        return open_ledger(str(self.folder / "ledger"), "orders")

    def rows(self, table: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        return list(DeltaTable(str(self.folder / "tables" / table)).to_pyarrow_table().to_pylist())

    def totals(self) -> dict[int, tuple[Decimal, int, datetime]]:
        if not (self.folder / "tables" / "totals" / "_delta_log").exists():
            return {}
        return {row["customer_id"]: (row["spent"], row["orders"], row["last"]) for row in self.rows("totals")}

    def check(self) -> None:
        """The tables are those of a pipeline that had the fix from the start."""
        expected = Expected(FILES, FILES, ROWS)
        assert self.totals() == expected.totals
        revenue = Counter((r["window_start"], r["country"], r["revenue"], r["orders"]) for r in self.rows("revenue"))
        assert revenue == Counter((*key, *value) for key, value in expected.revenue.items())


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow")
    with Airflow(home, AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="2") as started:
        yield started


@pytest.fixture(scope="module")
def page(airflow: Airflow) -> Iterator[Page]:
    with Browser() as browser:
        opened = browser.page()
        airflow.call("GET", "/dags")
        opened.cookie(f"http://127.0.0.1:{airflow.port}", "_token", airflow._token)
        yield opened


def seen(page: Page, name: str) -> None:
    """Keep what the page looks like, for whoever wants to see it."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder, f"{name}.png"))


def test_the_example_is_computed_again_from_before_its_first_checkpoint_though_a_worker_is_killed(
    airflow: Airflow, page: Page
) -> None:
    first = datetime.now(UTC).replace(second=0, microsecond=0)
    example = Example(airflow)
    orders_feed.feed(example.folder, files=FILES, rows=ROWS)
    example.deploy()
    due = Expected(FILES, FILES, ROWS).totals
    counts = {customer: orders for customer, (_, orders, _) in due.items()}
    eventually("all is in the tables", lambda: {k: n for k, (_, n, _) in example.totals().items()} == counts, 400)
    assert {k: spent for k, (spent, _, _) in example.totals().items()} != {k: spent for k, (spent, _, _) in due.items()}
    green = {run.run_id for run in airflow.runs("orders") if run.state == "success"}

    (example.folder / "hold").touch()
    airflow.call("PATCH", "/dags/orders", {"is_paused": True})
    eventually("nothing is open", lambda: not list(example.ledger.view().still_open()), 120)
    example.write("    " + WRONG, HELD.format(home=str(example.folder)))

    page.goto(f"http://127.0.0.1:{airflow.port}/dags/orders")
    fill_backfill(page, first, first + timedelta(minutes=1))
    seen(page, "backfill-dialog")
    airflow.call("PATCH", "/dags/orders", {"is_paused": False})
    run_backfill(page, airflow)
    replay = eventually("the replay begins", lambda: next(iter(airflow.runs("orders__backfill")), None), 180)
    replay.until("replay", "running", timeout=240)
    at_work = eventually("it is at work", lambda: at_work_of(example.folder, replay), 240)
    os.kill(at_work, signal.SIGKILL)
    (example.folder / "hold").unlink()
    assert (replay.ended(400), replay.run_id) == ("success", "backfill__1")
    assert replay.tries()["replay"] > 1, "it was killed"

    followers = airflow.call("GET", "/dags/orders/dagRuns?run_type=backfill&limit=100")["dag_runs"]
    followed = {each["dag_run_id"]: Run(airflow, "orders", each["dag_run_id"]).ended() for each in followers}
    assert set(followed.values()) == {"success"}
    assert {run.state for run in airflow.runs("orders") if run.run_id in green} == {"success"}
    page.goto(f"http://127.0.0.1:{airflow.port}/dags/orders")
    page.has("Latest Run", timeout=60)
    seen(page, "backfill-grid")

    page.goto(f"http://127.0.0.1:{airflow.port}/dags/orders/plugin/checkpoints")
    page.here = FRAME
    page.has("What a swap would change", "main", timeout=60)
    seen(page, "backfill-caught-up")
    page.click("#act-swap-airflow-1")
    page.has("Rows after", "dialog")
    page.click("#dialog-send")
    swap = eventually("the swap begins", lambda: airflow.runs("orders__backfill")[1:], 60)[0]
    assert swap.ended() == "success"
    example.check()
    page.has("Latest swap", "main", timeout=60)
    seen(page, "backfill-swapped")
    airflow.call("PATCH", "/dags/orders", {"is_paused": True})


def at_work_of(folder: Path, replay: Run) -> int | None:
    """The process of the replay, once it is in the mended stage."""
    pids = {int(path.name.partition("-")[2]) for path in folder.glob("at_work-*")}
    pid = replay.pid("replay")
    return pid if pid in pids else None


def test_where_history_is_gone_it_is_refused_before_its_first_run_by_the_dialog_and_by_the_command(
    airflow: Airflow, page: Page
) -> None:
    made = airflow.project.pipeline("short", interval="5 s", min_pause="0 s", num_retained=2).feed(4)
    airflow.known("short")
    eventually("the first one is retired", lambda: made.ledger.ids()[:1] > [1] and made.holds(4), 240)
    airflow.call("PATCH", "/dags/short", {"is_paused": True})
    eventually("nothing is open", lambda: not list(made.ledger.view().still_open()), 120)
    last = datetime.now(UTC).replace(second=0, microsecond=0)
    first = last - timedelta(hours=1)

    page.here = "document"
    page.goto(f"http://127.0.0.1:{airflow.port}/dags/short")
    fill_backfill(page, first, first + timedelta(minutes=1))
    press(page, "Run Backfill")
    page.has("has no checkpoint from before", timeout=60)
    page.has("begin Airflow's backfill at")
    page.has("retain_per_day")
    seen(page, "backfill-refused")

    words = ["backfill", "create", "--dag-id", "short", "--from-date", first.isoformat(), "--to-date", last.isoformat()]
    command = [sys.executable, "-m", "airflow", *words, "--reprocess-behavior", "completed"]
    done = subprocess.run(command, env=airflow.env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    told = " ".join((done.stdout + done.stderr).split())
    assert "has no checkpoint from before" in told
    assert "begin Airflow's backfill at" in told

    assert airflow.call("GET", "/backfills?dag_id=short")["backfills"] == []
    assert airflow.runs("short__backfill") == []
    made_by_it = airflow.call("GET", "/dags/short/dagRuns?run_type=backfill")["dag_runs"]
    assert made_by_it == [], "no run was made, and none of then was cleared"
