"""spark.mode = submit: jobs as applications of their own on a real standalone cluster, a master and two workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.dags import by_hand
from tests.dags.processes import alive, children
from tests.dags.project import Made, Project
from tests.kit.jvm import environment
from tests.kit.sampling import in_turn, only_with_all
from tests.kit.waiting import eventually
from tests.spark.cluster import Cluster

pytestmark = in_turn(seconds=100)


STAGE = """
if (HERE / "broken").exists():
    raise ValueError(f"this stage is {'broken'}")
import os, time
(HERE / f"at_work-{os.getpid()}").touch()
while (HERE / "hold").exists():
    time.sleep(0.05)
from pyspark.sql.functions import udf
def same(value):
    import tidegate  # workers can import what the driver can
    return value
rows = rows.repartition(2).withColumn("file", udf(same, "long")("file"))
"""


APART = """
TOLD = ("spark.executor.memory", "spark.driver.memory", "spark.cores.max", "spark.sql.shuffle.partitions")
def told(name):
    def tell(rows):
        conf = rows.sparkSession.sparkContext.getConf()
        (HERE / name).write_text(" ".join(conf.get(key, "-") for key in TOLD))
        return rows
    return tell

pipeline.stage(seen, name="here")(told("told_main")).sink("here", DeltaAppend(pipeline.name + "/here"))
OWN = {
    "spark.executor.memory": "600m",
    "spark.driver.memory": "768m",
    "spark.cores.max": 1,
    "spark.sql.shuffle.partitions": 3,
}
apart = pipeline.stage(seen.job("apart", spark=OWN, pool="small"), name="apart")(told("told_apart"))
apart.sink("apart", DeltaAppend(pipeline.name + "/apart"))
"""
"""A second job, with more memory and fewer cores than the first."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch, Cluster(tmp_path_factory.mktemp("cluster")) as started:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield started


@pytest.fixture
def made(cluster: Cluster, tmp_path: Path) -> Made:
    return Project(tmp_path / "project").pipeline("sent", stage=STAGE, spark=submitted_to(cluster)).feed()


def submitted_to(cluster: Cluster) -> dict[str, object]:
    conf = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    return {"mode": "submit", "master": cluster.master, "memory": "1g", "conf": conf}


class Run:
    """One run of the DAG, task by task, each as Airflow calls it."""

    def __init__(self, made: Made, run_id: str = "r") -> None:
        self.made = made
        self.run_id = run_id
        self.dag = by_hand.load(str(made.dag_file))
        self.dag.fileloc = str(made.dag_file)

    def task(self, name: str) -> Any:
        return self.dag.task_dict[name].execute(self.context())

    def context(self) -> dict[str, Any]:
        found = by_hand.context(self.dag, self.run_id)
        found["ti"].get_task_states = lambda **_: {}
        found["outlet_events"] = defaultdict(lambda: SimpleNamespace(extra=None))
        return found

    def in_a_process(self) -> subprocess.Popen[str]:
        """The job, in a process that can be killed."""
        command = [sys.executable, "-m", "tests.dags.by_hand", str(self.made.dag_file), "job_main", self.run_id]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_checkpoint_is_made_by_the_workers_of_a_cluster_and_each_job_has_its_own(cluster: Cluster, tmp_path: Path):
    made = Project(tmp_path / "project").pipeline("cut", stage=STAGE, gate=APART, spark=submitted_to(cluster)).feed()
    executors = cluster.executors
    run = Run(made)
    assert run.task("trigger") == {"checkpoint": 1, "done": False}
    assert run.task("job_main") == {"checkpoint": 1}
    assert run.task("job_main") == {"checkpoint": 1}  # done already: nothing is submitted again
    assert cluster.executors == executors + 2
    assert (made.folder / "told_main").read_text() == "512m 1g - 2"
    assert run.task("job_apart") == {"checkpoint": 1}
    assert cluster.executors == executors + 3, "with one core there is one"
    assert (made.folder / "told_apart").read_text() == "600m 768m 1 3"
    assert run.task("complete") == {"checkpoint": 1}
    made.check(1)
    work = made.entries[0].acks["main"].ack.stats.spark
    assert (work.queries or 0) >= 1, "known in an application of its own, too"
    assert (work.tasks or 0) >= 2
    assert work.analyses is None


def test_a_stage_that_fails_is_told_as_everywhere(made: Made):
    (made.folder / "broken").touch()
    run = Run(made)
    run.task("trigger")
    with pytest.raises(AirflowFailException) as failed:  # and not one that is retried
        run.task("job_main")
    told = str(failed.value)
    assert "STAGE_FAILED: stage 'seen' failed: ValueError (" in told
    assert "this stage is broken" not in told, "it may quote a row"
    assert f"{made.dag_file}, line " in told
    assert not list(made.folder.glob("**/*.parquet"))


@only_with_all
def test_killed_midway_and_tried_again_counts_once(made: Made, cluster: Cluster):
    run = Run(made)
    run.task("trigger")
    made.hold()
    gone = cluster.gone
    task = run.in_a_process()
    driver = made.at_work()
    submit = children(task.pid)
    assert len(submit) == 1
    os.kill(submit[0], signal.SIGKILL)  # spark-submit, and with it Spark's driver
    told, _ = task.communicate(timeout=120)
    assert task.returncode == 1, told
    assert "UNAVAILABLE" in told or "SPARK_" in told, told
    eventually("its Spark application is gone", lambda: cluster.gone > gone)
    assert not alive(driver)
    made.release()
    assert run.task("job_main") == {"checkpoint": 1}
    assert run.task("complete") == {"checkpoint": 1}
    made.check(1)


@only_with_all
def test_the_spark_application_of_a_task_that_is_gone_goes_too(made: Made, cluster: Cluster):
    """A task whose worker was killed ends nothing itself."""
    run = Run(made)
    run.task("trigger")
    made.hold()
    gone = cluster.gone
    task = run.in_a_process()
    driver = made.at_work()
    task.kill()
    task.communicate(timeout=60)
    eventually("the driver is gone", lambda: not alive(driver))
    eventually("its Spark application is gone", lambda: cluster.gone > gone)


@only_with_all
def test_a_checkpoint_past_its_timeout_takes_its_spark_application_along(cluster: Cluster, tmp_path: Path):
    spark = {"mode": "submit", "master": cluster.master, "memory": "1g", "conf": {"spark.executor.memory": "512m"}}
    made = Project(tmp_path / "project").pipeline("late", stage=STAGE, spark=spark, timeout="15 s").feed()
    run = Run(made)
    run.task("trigger")
    made.hold()
    before = children(os.getpid())
    with pytest.raises(AirflowFailException, match="CHECKPOINT_EXPIRED"):
        run.task("job_main")
    assert children(os.getpid()) == before
    assert not [pid for pid in made._pids() if alive(pid)]
    eventually("its Spark application is gone", lambda: cluster.gone == cluster.registered)
