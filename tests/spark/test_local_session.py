"""Spark inside this process: configured as promised, and nothing left lying about."""

import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.jvm import QUICK
from tests.kit.sampling import in_turn
from tidegate.config.spark_keys import _SERVER_PREFIXES, FIXED, STATIC_SQL_KEYS
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.spark.session import ReusedSession, SparkSettings, session, translated

pytestmark = in_turn(seconds=40)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Those of the `spark` fixture."""
    return SparkSettings(mode="local", home=tmp_path_factory.mktemp("home"), master="local[2]", memory="2g", conf=QUICK)


def test_delta_round_trip(spark, tmp_path):
    table = str(tmp_path / "table")
    rows = "id, id * 2 as twice, timestamp'2024-03-31 02:30:00' as at"
    spark.range(100).selectExpr(*rows.split(", ")).write.format("delta").save(table)
    spark.range(100, 150).selectExpr(*rows.split(", ")).write.format("delta").mode("append").save(table)
    read = spark.read.format("delta").load(table)
    assert read.count() == 150
    assert read.selectExpr("sum(twice)").first()[0] == 149 * 150
    assert spark.read.format("delta").option("versionAsOf", 0).load(table).count() == 100


def test_fixed_keys_reach_spark(spark):
    told = {key: spark.conf.get(key) for key in FIXED if key.startswith("spark.sql.")}
    assert told == {key: values[0] for key, (values, _) in FIXED.items() if key in told}
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_a_written_folder_holds_the_files_of_successful_tasks_only(spark, tmp_path):
    spark.range(10).repartition(2).write.parquet(str(tmp_path / "staged"))
    names = [name for name in os.listdir(tmp_path / "staged") if not name.endswith(".crc")]
    assert len(names) == 2
    assert all(re.fullmatch(r"part-0000[01]-.*\.parquet", name) for name in names)


def test_a_failed_job_leaves_nothing_that_can_be_read(spark, tmp_path):
    broken = spark.range(10).repartition(2).selectExpr("assert_true(id < 5) is null and id > 0 as x")
    with pytest.raises(Invalid), translated():
        broken.write.parquet(str(tmp_path / "staged"))
    listed = os.listdir(tmp_path / "staged") if (tmp_path / "staged").exists() else []
    assert [name for name in listed if not name.startswith(("_", "."))] == []


def test_timestamps_are_micros(spark, tmp_path):
    import pyarrow.parquet as pq

    spark.sql("select timestamp'2024-01-01 00:00:00' as at, 1.5BD as d").coalesce(1).write.parquet(str(tmp_path / "t"))
    [file] = (tmp_path / "t").glob("*.parquet")
    schema = pq.ParquetFile(file).schema
    assert schema.column(0).physical_type == "INT64"
    assert "timeUnit=microseconds" in str(schema.column(0).logical_type)


def test_nothing_is_left_in_the_working_folder(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spark.range(3).createOrReplaceTempView("v")
    spark.sql("create table kept using parquet as select * from v")
    spark.sql("drop table kept")
    assert list(tmp_path.iterdir()) == []
    checkout = Path(__file__).resolve().parents[2]
    assert not [name for name in ("metastore_db", "derby.log", "spark-warehouse") if (checkout / name).exists()]


def test_static_keys_are_those_that_spark_says(spark):
    conf = getattr(getattr(spark._jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$")
    keys = [entry.key() for entry in conf.getConfigEntries().toArray()]
    # Delta's own are known to Spark only once Delta was used; whether it was depends on the tests before.
    ours = {key for key in keys if key.startswith("spark.sql.") and not key.startswith(_SERVER_PREFIXES)}
    assert len(ours) > 500
    assert {key for key in ours if conf.isStaticConfigKey(key)} <= STATIC_SQL_KEYS
    assert [key for key in STATIC_SQL_KEYS if not conf.isStaticConfigKey(key)] == []


def test_sessions_have_their_own_keys_and_views(spark, settings):
    with session(replace(settings, conf=QUICK | {"spark.sql.shuffle.partitions": "7"})) as other:
        assert other.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
        other.range(1).createOrReplaceTempView("only_mine")
        assert not spark.catalog.tableExists("only_mine")
    assert spark.range(1).count() == 1


def test_jobs_have_a_session_of_their_own_if_their_settings_differ(spark, settings):
    scoring = replace(settings, conf=QUICK | {"spark.sql.shuffle.partitions": "7"})
    with ReusedSession(settings, {"scoring": scoring}) as sessions:
        opened = []
        sessions.opened = lambda: opened.append(1)
        partitions = [sessions(job).conf.get("spark.sql.shuffle.partitions") for job in ("main", "scoring", "other")]
        assert partitions == ["2", "7", "2"]
        assert sessions() is sessions("main") is sessions("other")
        assert sessions("scoring") is sessions("scoring")
        assert len(opened) == 2
        sessions.drop()
        assert sessions("scoring").range(1).count() == 1
    assert spark.range(1).count() == 1


def test_another_spark_in_the_same_process_is_refused(spark, settings):
    with pytest.raises(Invalid, match="already running in this process"), session(replace(settings, memory="1g")):
        pass


def test_a_session_key_that_spark_refuses(spark, settings):
    wrong = replace(settings, conf=QUICK | {"spark.sql.shuffle.partitions": "many"})
    with pytest.raises(Invalid, match="INVALID_CONF_VALUE"), session(wrong):
        pass


def test_workers_run_this_python_and_tidegate(spark):
    from pyspark.sql import functions as F

    @F.udf("string")
    def where(_):
        import sys

        import tidegate

        return f"{sys.prefix} {tidegate.__name__} {os.environ['TZ']}"

    import sys

    assert spark.range(1).select(where("id")).first()[0] == f"{sys.prefix} tidegate UTC"


def test_ctrl_c_stays_ours(spark):
    ours = {signal.default_int_handler, signal.SIG_IGN}  # ignored from the start in what a shell runs in the background
    assert signal.getsignal(signal.SIGINT) in ours


def test_errors_are_told_without_java(spark, tmp_path):
    (tmp_path / "bad.json").write_text('{"a": 1}\n{"a": \n')
    reading = spark.read.schema("a int").option("mode", "FAILFAST").json(str(tmp_path / "bad.json"))
    cases = {
        "CAST_INVALID_INPUT": lambda: spark.sql("select cast('x' as int)").collect(),
        "UNRESOLVED_COLUMN_WITH_SUGGESTION": lambda: spark.range(1).select("nope"),
        "PATH_NOT_FOUND": lambda: spark.read.parquet(str(tmp_path / "nope")),
        "PARSE_SYNTAX_ERROR": lambda: spark.sql("selec 1"),
        "MALFORMED_RECORD_IN_PARSING_WITHOUT_SUGGESTION": reading.collect,
        "USER_CODE": spark.range(1).mapInArrow(lambda batches: (1 / 0 for _ in batches), "id long").collect,
    }
    for reason, case in cases.items():
        with pytest.raises(Invalid) as caught, translated():
            case()
        assert caught.value.reason == reason
        assert "\n" not in caught.value.what
        assert "org.apache" not in caught.value.what
    assert "bad.json" in str(_told(reading.collect))


def test_a_worker_that_dies_is_unavailable(spark):
    def die(batches):
        os._exit(9)

    told = _told(spark.range(1).mapInArrow(die, "id long").collect)
    assert isinstance(told, Unavailable)
    assert told.reason == "SPARK_WORKER_LOST"


def test_a_lost_jvm_is_unavailable_and_a_password_is_not_shown(tmp_path):
    """In a process of its own, which loses its JVM."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        "from tidegate.errors import Unavailable\n"
        "from tidegate.spark.session import SparkSettings, session, translated\n"
        "conf = {'spark.hadoop.fs.s3a.secret.key': 'canary-1234'}\n"
        "settings = SparkSettings(mode='local', home=Path(sys.argv[1]), master='local[1]', memory='512m', conf=conf)\n"
        "with session(settings) as spark:\n"
        "    assert b'canary-1234' not in subprocess.run(['ps', 'axww'], capture_output=True).stdout\n"
        "    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)\n"
        "    try:\n"
        "        with translated():\n"
        "            spark.range(1).count()\n"
        "    except Unavailable as error:\n"
        "        print(error.reason)\n"
        "with session(settings) as spark:\n"
        "    print(spark.range(3).count())\n"
    )
    import sys

    said = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=120)
    assert said.stdout.splitlines() == ["SPARK_LOST", "3"], said.stderr
    assert said.returncode == 0, said.stderr


def _told(action) -> TidegateError:
    with pytest.raises(TidegateError) as caught, translated():
        action()
    return caught.value


def test_a_python_function_right_behind_parquet_files_and_before_a_shuffle_ends(spark, tmp_path):
    """Spark's own default of 4.2.0 hangs there, or its workers crash."""
    from pyspark.sql import functions as f

    spark.range(20_000).selectExpr("string(id % 100) as name").repartition(4).write.parquet(str(tmp_path / "rows"))
    marked = f.udf(lambda name: name + "!", "string")
    rows = spark.read.parquet(str(tmp_path / "rows")).withColumn("name", marked("name"))
    assert rows.groupBy("name").count().count() == 100
