import os
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.config.spark_keys import FIXED
from tidegate.errors import Invalid
from tidegate.spark.conf import SparkSettings, properties, server_conf, session_conf

SCRATCH = Path("/scratch")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "cluster"},
        {"mode": "submit", "remote": "sc://x"},
        {"mode": "submit", "master": "mesos://x"},
        {"mode": "submit", "conf": {"spark.submit.deployMode": "cluster"}},
        {"mode": "submit", "conf": {"spark.ui.enabled": "true"}},
        {"remote": "http://x"},
        {"remote": "sc://x", "mode": "local"},
        {"idle_timeout": 0},
        {"idle_timeout": float("nan")},
        {"answer_timeout": -1.0},
        {"start_timeout": float("inf")},
        {"mode": "local", "master": "yarn"},
        {"master": "local[0]"},
        {"memory": "2"},
        {"memory": "0g"},
        {"home": Path("relative")},
        {"conf": {"memory": "2g"}},
        {"conf": {"spark.x": 7}},
        {"conf": {"spark.x=y": "z"}},
        {"conf": {"spark.x\ny": "z"}},
        {"conf": {"spark.master": "local"}},
        {"conf": {"spark.driver.memory": "1g"}},
        {"conf": {"spark.remote": "sc://x"}},
        {"conf": {"spark.jars.packages": "a:b:c"}},
        {"conf": {"spark.connect.authenticate.token": "mine"}},
        {"conf": {"spark.connect.grpc.binding.address": "0.0.0.0"}},
        {"conf": {"spark.connect.grpc.binding.port": "15002"}},
        {"conf": {"spark.driver.bindAddress": "0.0.0.0"}},
        {"conf": {"spark.ui.enabled": "true"}},
        {"conf": {"spark.sql.session.timeZone": "Europe/Berlin"}},
        {"conf": {"spark.sql.parquet.outputTimestampType": "INT96"}},
        {"conf": {"spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2"}},
        {"conf": {"spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "true"}},
        {"conf": {"spark.sql.sources.commitProtocolClass": "org.example.Direct"}},
        {"conf": {"spark.pyspark.python": "python3"}},
        {"conf": {"spark.executor.memory": "lots"}},
        {"conf": {"spark.executor.cores": "0"}},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_with_the_next_step(wrong):
    with pytest.raises(Invalid) as caught:
        SparkSettings(**wrong)
    assert caught.value.help


def test_what_is_fixed_may_be_said_again():
    keys = {key if key.startswith("spark.") else f"spark.hadoop.{key}": values[0] for key, (values, _) in FIXED.items()}
    assert server_conf(SparkSettings(conf=keys), SCRATCH) | keys == server_conf(SparkSettings(), SCRATCH) | keys


def test_defaults_that_matter():
    told = server_conf(SparkSettings(home=Path("/home"), master="local[3]"), SCRATCH)
    assert told["spark.sql.shuffle.partitions"] == "3"
    assert told["spark.databricks.delta.snapshotPartitions"] == "2"
    assert told["spark.sql.session.timeZone"] == "UTC"
    assert told["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    assert told["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "1"
    assert told["spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs"] == "false"
    assert told["spark.ui.enabled"] == "false"
    assert told["spark.driver.bindAddress"] == "127.0.0.1"
    assert told["spark.local.dir"] == "/scratch"
    assert told["spark.authenticate"] == "true"
    assert "delta-spark" in told["spark.jars"]


def test_cores():
    def partitions(master: str) -> str:
        return server_conf(SparkSettings(master=master), SCRATCH)["spark.sql.shuffle.partitions"]

    assert partitions("local") == "1"
    assert partitions("local[2, 3]") == "2"
    assert partitions("local-cluster[2,3,1024]") == "6"
    assert partitions("local[*]") == str(len(os.sched_getaffinity(0)))
    assert "spark.authenticate" not in server_conf(SparkSettings(master="local-cluster[2,3,1024]"), SCRATCH)


def test_what_never_leaves_the_machine_is_not_compressed():
    def compressed(master: str, conf: dict[str, str] | None = None) -> str | None:
        return server_conf(SparkSettings(master=master, conf=conf or {}), SCRATCH).get("spark.shuffle.compress")

    assert [compressed(master) for master in ("local", "local[*]", "local[2, 3]")] == ["false"] * 3
    assert compressed("local-cluster[2,3,1024]") is None
    assert compressed("spark://master:7077") is None
    assert compressed("local[2]", {"spark.shuffle.compress": "true"}) == "true"


def test_the_users_keys_override_and_lists_are_added_to():
    settings = SparkSettings(
        conf={
            "spark.executor.heartbeatInterval": "20s",
            "spark.local.dir": "/fast",
            "spark.jars": "/a.jar, /b.jar",
            "spark.sql.extensions": "org.example.More",
        }
    )
    told = server_conf(settings, SCRATCH)
    assert told["spark.executor.heartbeatInterval"] == "20s"
    assert told["spark.local.dir"] == "/fast"
    assert told["spark.jars"].endswith(",/a.jar,/b.jar")
    assert "delta-spark" in told["spark.jars"]
    assert told["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,org.example.More"


def test_keys_of_a_session_do_not_make_a_server():
    mine = {"spark.sql.shuffle.partitions": "7", "spark.databricks.delta.properties.defaults.appendOnly": "true"}
    servers = {"spark.sql.warehouse.dir": "/w", "spark.sql.catalog.other": "org.example.Catalog"}
    settings = SparkSettings(conf=mine | servers)
    assert session_conf(settings) == mine
    told = server_conf(settings, SCRATCH)
    assert servers.items() <= told.items()
    assert told["spark.sql.shuffle.partitions"] != "7"


def test_a_remote_server_gets_what_is_of_a_session():
    settings = SparkSettings(remote="sc://elsewhere:1", conf={"spark.sql.shuffle.partitions": "7"})
    told = session_conf(settings)
    assert told["spark.sql.shuffle.partitions"] == "7"
    assert told["spark.sql.session.timeZone"] == "UTC"
    assert told["mapreduce.fileoutputcommitter.marksuccessfuljobs"] == "false"
    assert not [
        key for key in told if key.startswith(("spark.driver", "spark.connect", "spark.ui", "spark.sql.catalog"))
    ]
    with pytest.raises(Invalid, match=r"only reads spark\.executor\.memory when it starts"):
        session_conf(replace(settings, conf={"spark.executor.memory": "1g"}))


def test_secrets_are_not_shown():
    settings = SparkSettings(remote="sc://x/;token=canary", conf={"spark.hadoop.fs.s3a.secret.key": "canary"})
    assert "canary" not in repr(settings)
    with pytest.raises(Invalid) as caught:
        SparkSettings(remote="canary")
    assert "canary" not in str(caught.value)


def test_settings_do_not_change_under_their_owner():
    mine = {"spark.sql.shuffle.partitions": "7"}
    settings = SparkSettings(conf=mine)
    mine["spark.sql.shuffle.partitions"] = "8"
    assert settings.conf == {"spark.sql.shuffle.partitions": "7"}


def test_values_survive_a_properties_file():
    text = properties({"spark.a": r"C:\new=x:y #!", "spark.b": "line\nbreak\ttab", "spark.c": "ü"})
    assert text == "spark.a=C:\\\\new=x:y #!\nspark.b=line\\nbreak\\ttab\nspark.c=ü\n"


def test_who_sets_thresholds_of_javas_compilers_has_their_own(monkeypatch):
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)

    def options(**conf: str) -> str:
        return server_conf(SparkSettings(conf=conf), SCRATCH)["spark.driver.defaultJavaOptions"]

    ours = "-XX:Tier4InvocationThreshold="
    assert ours in options()
    assert ours not in options(**{"spark.driver.extraJavaOptions": "-XX:Tier4InvocationThreshold=9"})
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:Tier3DelayOn=9")
    assert ours not in options()


def test_one_collector_only(monkeypatch):
    """A JVM that is told two does not start. So who names one anywhere has it, and large heaps keep Java's own."""

    def options(**settings: object) -> str:
        return server_conf(SparkSettings(**settings), SCRATCH)["spark.driver.defaultJavaOptions"]

    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    ours = "-XX:+UseParallelGC"
    assert ours in options()
    assert ours in options(conf={"spark.driver.extraJavaOptions": "-Dkey=value"}, memory="8g")
    assert ours not in options(conf={"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseZGC"})
    assert ours not in options(memory="9g")
    assert ours not in options(memory="1t")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert "-XX:+ExitOnOutOfMemoryError" in options()
    assert ours not in options()
