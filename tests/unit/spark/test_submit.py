"""What spark-submit is called with, where its driver finds the pipeline, and what it tells of errors."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec
import pytest

from tidegate.config import load_settings
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.execution.loading import find_pipeline
from tidegate.spark.conf import SparkSettings, server_conf, session_conf
from tidegate.spark.session import control_settings, session, spark_settings
from tidegate.spark.submit import ERROR_FILE, REQUEST_FILE, DriverFailure, DriverRequest, prepared

PIPELINE = "from tidegate import Pipeline\nmine = Pipeline({name!r})\n"


def request(project: Path, declared_in: list[tuple[str, str]] | None = None) -> DriverRequest:
    return DriverRequest("shop", declared_in or [], str(project), 7, "main")


def conf(settings: SparkSettings, project: Path) -> dict[str, str]:
    with prepared(settings, request(project)) as submission:
        lines = submission.properties_file.read_text().splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_a_cluster_elsewhere_reaches_the_driver_as_it_or_the_user_says(tmp_path: Path):
    elsewhere = SparkSettings(mode="submit", master="spark://far:7077", conf={"spark.sql.shuffle.partitions": "7"})
    told = conf(elsewhere, tmp_path)
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"} & told.keys()
    assert told["spark.master"] == "spark://far:7077"
    assert told["spark.submit.deployMode"] == "client"
    assert told["spark.sql.shuffle.partitions"] == "7"
    assert told["spark.sql.session.timeZone"] == "UTC"
    assert told["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "1"
    assert "delta-spark" in told["spark.jars"]
    assert not [key for key in told if ".connect." in key]
    mine = {"spark.driver.host": "near", "spark.pyspark.python": "/usr/bin/python3.11"}
    assert mine.items() <= conf(SparkSettings(mode="submit", master="yarn", conf=mine), tmp_path).items()


def test_a_cluster_on_this_machine_stays_on_loopback(tmp_path: Path):
    told = conf(SparkSettings(mode="submit", master="spark://127.0.0.1:7077"), tmp_path)
    assert told["spark.driver.host"] == told["spark.driver.bindAddress"] == "127.0.0.1"
    assert told["spark.pyspark.python"] == sys.executable


def test_workers_can_import_what_was_imported_here(tmp_path: Path):
    places = [("shop.orders", str(tmp_path / "code" / "shop" / "orders.py"))]
    settings = SparkSettings(mode="submit", master="spark://far:7077", python_path=(tmp_path / "project",))
    with prepared(settings, request(tmp_path, places)) as submission:
        told = submission.environment["PYTHONPATH"].split(":")
        assert msgspec.json.decode((submission.folder / REQUEST_FILE).read_bytes())["checkpoint"] == 7
        assert "SPARK_LOCAL_IP" not in submission.environment
    assert told[:2] == [str(tmp_path / "project"), str(tmp_path / "code")]
    assert not submission.folder.exists()


def test_a_project_may_have_its_own_script(tmp_path: Path):
    with prepared(SparkSettings(mode="submit"), request(tmp_path)) as submission:
        assert submission.application.parent == submission.folder
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "run_job.py").touch()
    with prepared(SparkSettings(mode="submit"), request(tmp_path)) as submission:
        assert submission.application == tmp_path / "jobs" / "run_job.py"


def test_what_the_driver_tells_is_raised_again(tmp_path: Path):
    with prepared(SparkSettings(mode="submit"), request(tmp_path)) as submission:
        refused = Rejected("no", expected="yes", help="wait", reason="SUSPENDED")
        (submission.folder / ERROR_FILE).write_bytes(msgspec.json.encode(DriverFailure.from_error(refused)))
        again = submission.error("")
        assert (type(again), str(again), getattr(again, "reason", "")) == (Rejected, str(refused), "SUSPENDED")
        (submission.folder / ERROR_FILE).write_bytes(msgspec.json.encode(DriverFailure.from_error(KeyError("x"))))
        unforeseen = submission.error("")
        assert "the submitted job failed: KeyError" in str(unforeseen)
        assert "'x'" not in str(unforeseen), "it may be a value"
        assert "KeyError: 'x'" in unforeseen.quoted
        (submission.folder / ERROR_FILE).unlink()
        assert type(submission.error("Error: no such option")) is Invalid
        assert type(submission.error("")) is Unavailable


def test_a_pipeline_is_found_in_its_module_or_in_its_dag_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "submitted_shop.py"
    file.write_text(PIPELINE.format(name="shop"))
    module = importlib.import_module("submitted_shop")
    assert module.mine.declared_in == ("submitted_shop", str(file))
    assert find_pipeline("shop", [module.mine.declared_in], "the driver") is module.mine
    dag_file = tmp_path / "dag.py"
    dag_file.write_text(PIPELINE.format(name="other"))
    found = find_pipeline("other", [module.mine.declared_in, ("unusual_prefix_1_dag", str(dag_file))], "the driver")
    assert found.name == "other"
    with pytest.raises(Invalid, match=r"no variable of .*dag\.py holds it"):
        find_pipeline("third", [("", str(dag_file))], "the driver")
    dag_file.write_text("import nowhere_to_be_found")
    with pytest.raises(Invalid, match="nowhere_to_be_found"):
        find_pipeline("other", [("", str(dag_file))], "the driver")


def test_nothing_else_takes_a_session_from_a_cluster(tmp_path: Path):
    with pytest.raises(Invalid, match="no Spark session can be opened here"), session(SparkSettings(mode="submit")):
        pass
    code = {"spark": {"mode": "submit", "master": "yarn", "conf": {"spark.driver.host": "x", "spark.hadoop.a": "b"}}}
    control = control_settings(load_settings(code=code, env={}, start=tmp_path))
    assert (control.mode, control.master) == ("connect", "local[*]")
    assert control.conf["spark.hadoop.a"] == "b"
    assert "spark.driver.host" not in control.conf


def test_each_job_is_submitted_with_its_own_memory_and_executors(tmp_path: Path):
    shared = {"spark.executor.memory": "1g", "spark.executor.cores": "2", "spark.sql.shuffle.partitions": 10}
    own = {"spark.driver.memory": "4g", "spark.executor.memory": "8g", "spark.sql.shuffle.partitions": 400}
    code = {
        "spark": {"mode": "submit", "master": "yarn", "memory": "1g", "conf": shared},
        "jobs": {"scoring": {**own, "spark.dynamicAllocation.enabled": True}},
    }
    settings = load_settings(code=code, env={}, start=tmp_path)
    main, scoring = (conf(spark_settings(settings, job), tmp_path) for job in ("main", "scoring"))
    told = ("spark.driver.memory", "spark.executor.memory", "spark.executor.cores", "spark.sql.shuffle.partitions")
    assert [main[key] for key in told] == ["1g", "1g", "2", "10"]
    assert [scoring[key] for key in told] == ["4g", "8g", "2", "400"]
    assert scoring["spark.dynamicAllocation.enabled"] == "true"
    assert "spark.dynamicAllocation.enabled" not in main
    assert control_settings(settings, "scoring").memory == "1g", "what publishes for it is no application of its own"


def test_jobs_with_settings_of_their_own_share_one_server(tmp_path: Path):
    code = {"jobs": {"scoring": {"spark.sql.shuffle.partitions": 400}}}
    settings = load_settings(code=code, env={}, start=tmp_path)
    main, scoring = spark_settings(settings, "main"), control_settings(settings, "scoring")
    assert server_conf(main, tmp_path) == server_conf(scoring, tmp_path)
    assert session_conf(main) == {}
    assert session_conf(scoring) == {"spark.sql.shuffle.partitions": "400"}


@pytest.mark.parametrize(
    ("spark", "told"),
    [
        ({"mode": "local", "master": "spark://x:7077"}, "spark.master = 'spark://x:7077' (code): expected local[N]"),
        ({"mode": "local", "master": "yarn"}, "because spark.mode = 'local' (code) runs Spark in this process"),
        ({"mode": "submit", "remote": "sc://x"}, "spark.remote (code): expected none"),
    ],
)
def test_a_mode_and_a_master_that_do_not_fit_are_refused_with_the_settings(tmp_path: Path, spark: object, told: str):
    with pytest.raises(Invalid) as refused:
        load_settings(code={"spark": spark}, env={}, start=tmp_path)
    assert told in str(refused.value)
