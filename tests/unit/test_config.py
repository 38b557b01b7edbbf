"""Settings: layers, origins, and every wrong value refused with key, value, source and allowed range."""

import json
import math
from pathlib import Path

import pytest

from tidegate.config import KEYS, duration_text, load_settings
from tidegate.config.keys import DESCRIPTIONS
from tidegate.errors import Invalid

CANARY = "hunter2-canary"


@pytest.fixture
def project(tmp_path):
    return tmp_path


def load(project, toml="", **layers):
    if toml:
        (project / "tidegate.toml").write_text(toml, encoding="utf-8")
    return load_settings(**({"env": {}} | layers), start=project)


def refusal(project, toml="", **layers):
    with pytest.raises(Invalid) as caught:
        load(project, toml, **layers)
    return str(caught.value)


# -- layers ----------------------------------------------------------------------------------------


def test_every_setting_says_what_it_does_in_one_sentence():
    assert list(DESCRIPTIONS) == list(KEYS)
    for key in KEYS.values():
        assert key.description[0].isupper(), key.name
        assert key.description.endswith("."), key.name


def test_defaults_hold_without_any_layer(project):
    settings = load(project)
    assert (settings.interval, settings.timeout, settings.min_pause) == (300.0, 600.0, 0.0)
    assert (settings.max_concurrent_checkpoints, settings.tolerable_failed_checkpoints) == (1, 0)
    assert (settings.num_retained, settings.max_unpublished) == (10, 10)
    assert (settings.root, settings.data) == (f"{project}/tidegate-data/ledger", str(project))
    assert (settings.spark.mode, settings.spark.master, settings.spark.memory) == ("connect", "local[*]", "2g")
    assert settings.spark.idle_timeout == 600.0
    assert settings.spark.start_timeout == 90.0
    assert set(settings.origins.values()) == {"default", "default (= num_retained)"}


def test_each_later_layer_wins(project):
    layers = {"env": {}, "code": {}, "cli": {}}
    seen = [load(project, 'timeout = "1 min"').timeout]
    layers["env"] = {"TIDEGATE_TIMEOUT": "2 min"}
    seen.append(load(project, **layers).timeout)
    layers["code"] = {"timeout": 180}
    seen.append(load(project, **layers).timeout)
    layers["cli"] = {"timeout": "4 min"}
    seen.append(load(project, **layers).timeout)
    assert seen == [60.0, 120.0, 180.0, 240.0]


def test_each_value_tells_where_it_came_from(project):
    settings = load(
        project,
        '# ours\ninterval = "1 min"\n[spark]\nmode = "local"\n[spark.conf]\n"spark.ui.enabled" = false\n',
        env={"TIDEGATE_NUM_RETAINED": "7", "HOME": "/nowhere"},
        code={"min_pause": 5},
        cli={"spark.memory": "4g"},
    )
    file = str(project / "tidegate.toml")
    assert settings.origins["interval"] == f"{file} line 2"
    assert settings.origins["spark.mode"] == f"{file} line 4"
    assert settings.origins["spark.conf.spark.ui.enabled"] == f"{file} line 6"
    assert settings.origins["num_retained"] == "TIDEGATE_NUM_RETAINED"
    assert settings.origins["min_pause"] == "code"
    assert settings.origins["spark.memory"] == "-D"
    assert settings.origins["timeout"] == "default"
    assert {row.key: row.origin for row in settings.display_rows()}["spark.memory"] == "-D"


def test_line_numbers_are_left_out_where_they_could_be_wrong(project):
    toml = 'timeout = """\n10 min"""\n'
    assert load(project, toml).origins["timeout"] == str(project / "tidegate.toml")


def test_the_file_is_found_from_a_folder_below_and_its_folder_is_the_project(project):
    below = project / "a" / "b"
    below.mkdir(parents=True)
    (project / "tidegate.toml").write_text('root = "ledger"\ndata = "files"\n')
    settings = load_settings(env={}, start=below)
    assert settings.project == project
    assert (settings.root, settings.data) == (f"{project}/ledger", f"{project}/files")


def test_the_nearest_file_wins(project):
    below = project / "a"
    below.mkdir()
    (project / "tidegate.toml").write_text("num_retained = 3\n")
    (below / "tidegate.toml").write_text("num_retained = 4\n")
    assert load_settings(env={}, start=below).num_retained == 4


def test_tables_are_merged_entry_by_entry(project):
    settings = load(
        project,
        '[storage_options]\naws_region = "eu"\nallow_http = true\n[spark.conf]\nspark.sql.shuffle.partitions = 2\n',
        env={"TIDEGATE_STORAGE_OPTIONS": json.dumps({"aws_region": "us", "timeout": 30})},
        code={"spark": {"conf": {"spark.ui.enabled": False}}},
        cli={"spark.conf.spark.ui.enabled": "true"},
    )
    assert settings.storage_options == {"aws_region": "us", "allow_http": "true", "timeout": "30"}
    assert settings.spark.conf == {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "true"}


def test_the_place_is_the_data_folder_with_the_storage_options(project):
    place = load(project, code={"data": "files", "storage_options": {"k": "v"}}).place()
    assert place.url("landing/x.json") == f"{project}/files/landing/x.json"
    assert place.options == {"k": "v"}
    assert load(project, cli={"data": "s3://bucket/in/"}).place().url("x") == "s3://bucket/in/x"


def test_max_unpublished_follows_num_retained_unless_given(project):
    assert load(project, cli={"num_retained": "3"}).max_unpublished == 3
    assert load(project, cli={"num_retained": "3", "max_unpublished": "5"}).max_unpublished == 5


def test_min_pause_forces_one_checkpoint_at_a_time(project):
    assert load(project, cli={"min_pause": "5"}).max_concurrent_checkpoints == 1
    assert load(project, cli={"min_pause": "0", "max_concurrent_checkpoints": "3"}).max_concurrent_checkpoints == 3
    message = refusal(project, cli={"unaligned": "true"})
    assert "max_concurrent_checkpoints = 1 (default): expected 2 or more, because of unaligned = true (-D" in message
    assert load(project, cli={"unaligned": "true", "max_concurrent_checkpoints": "2"}).unaligned
    message = refusal(project, cli={"min_pause": "5"}, code={"max_concurrent_checkpoints": 2})
    assert "max_concurrent_checkpoints = 2 (code): expected 1" in message
    assert "min_pause = 5 s (-D)" in message


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (30, 30.0),
        (1.5, 1.5),
        ("30", 30.0),
        ("90 s", 90.0),
        ("1.5 h", 5400.0),
        ("10min", 600.0),
        ("10 MIN", 600.0),
        (" 2 hours ", 7200.0),
        ("1 day", 86400.0),
        ("2 days", 172800.0),
        ("1500 ms", 1.5),
        ("45 seconds", 45.0),
    ],
)
def test_durations(project, given, seconds):
    assert load(project, code={"timeout": given}).timeout == seconds


@pytest.mark.parametrize("text", ["10 min", "90 s", "1 h", "1 day", "1.5 s", "0 s"])
def test_a_duration_is_shown_as_it_is_accepted(project, text):
    assert duration_text(load(project, code={"min_pause": text}).min_pause) == text


def test_interval_can_be_never(project):
    settings = load(project, cli={"interval": "never"})
    assert settings.interval is None
    assert settings.record()["interval"] == "never"


def test_gaps_are_reported_also_under_the_name_of_version_0_2(project):
    assert load(project).gaps == "reported"
    assert load(project, cli={"gaps": "told"}).gaps == "reported"
    assert load(project, cli={"gaps": "expected"}).gaps == "expected"


def test_interval_can_be_event(project):
    settings = load(project, cli={"interval": "event", "max_pause": "90 s"})
    assert (settings.interval, settings.by_event, settings.max_pause) == (None, True, 90.0)
    assert settings.record()["interval"] == "event"
    assert {row.key: row.value for row in settings.display_rows()}["interval"] == "event"
    assert not load(project, cli={"interval": "never"}).by_event


# -- what is kept and shown ------------------------------------------------------------------------


def test_the_record_is_json_and_gives_the_same_settings_again(project):
    settings = load(
        project,
        cli={"interval": "never", "timeout": "90", "min_pause": "1.5 s", "spark.conf.spark.a": "1", "data": "x"},
    )
    record = json.loads(json.dumps(settings.record()))
    assert set(record) == set(KEYS) - {"spark.remote", "storage"}, "what is not set is left out"
    assert load(project, code=record) == load(project, code=settings.record())
    again = load(project, code=record)
    assert (again.timeout, again.min_pause, again.interval, again.data) == (90.0, 1.5, None, f"{project}/x")


def test_secrets_are_shown_nowhere(project):
    settings = load(
        project,
        code={
            "storage_options": {"aws_secret_access_key": CANARY},
            "spark": {
                "remote": f"sc://host:15002/;token={CANARY};use_ssl=true",
                "conf": {"spark.hadoop.fs.s3a.secret.key": CANARY},
            },
        },
    )
    assert settings.storage_options["aws_secret_access_key"] == CANARY
    for text in (repr(settings), str(settings.display_rows()), json.dumps(settings.record()), repr(settings.place())):
        assert CANARY not in text
    shown = {row.key: row.value for row in settings.display_rows()}
    assert shown["storage_options.aws_secret_access_key"] == "***"
    assert shown["spark.conf.spark.hadoop.fs.s3a.secret.key"] == "***"
    assert shown["spark.remote"] == "sc://host:15002/;token=***;use_ssl=true"


@pytest.mark.parametrize(
    "layers",
    [
        {"env": {"TIDEGATE_STORAGE_OPTIONS": CANARY}},
        {"env": {"TIDEGATE_STORAGE_OPTIONS": json.dumps({"key": [CANARY]})}},
        {"cli": {"storage_options": CANARY}},
        {"code": {"storage_options": CANARY}},
        {"code": {"storage_options": {"key": {"deeper": [CANARY]}}}},
        {"code": {"storage_option": {"key": CANARY}}},
        {"code": {"aws_secret_access_key": CANARY}},
        {"cli": {"password": CANARY}},
        {"code": {"spark": {"remote": f"http://host/;token={CANARY}"}}},
        {"code": {"spark": {"conf": {"spark.hadoop.password": [CANARY]}}}},
        {"code": {"root": f"s3://user:{CANARY}@bucket/x"}},
        {"code": {"spark": {"remote": f"sc://user:{CANARY}@"}, "timeout": 0}},
    ],
)
def test_a_refusal_shows_no_secret(project, layers):
    assert CANARY not in refusal(project, **layers)


def test_settings_cannot_be_changed(project):
    settings = load(project, code={"storage_options": {"a": "b"}})
    with pytest.raises(AttributeError):
        settings.timeout = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.storage_options["a"] = "c"  # type: ignore[index]
    with pytest.raises(TypeError):
        settings.spark.conf["a"] = "c"  # type: ignore[index]


# -- refusals --------------------------------------------------------------------------------------

DURATION = '30, "90 s", "10 min", "1 h" or "1 day"'
BAD_VALUES = [
    ("interval", "0", "from 1 s"),
    ("interval", "0.5 s", "from 1 s"),
    ("interval", "-5 min", DURATION),
    ("interval", "always", '"event" or "never"'),
    ("interval", "Never", '"never"'),
    ("interval", "", DURATION),
    ("interval", "400 days", "to 366 days"),
    ("interval", "PT10M", DURATION),
    ("interval", "5 parsecs", "the units are ms, s, min, h, day"),
    ("interval", "1 h 30 min", DURATION),
    ("interval", True, DURATION),
    ("interval", [1], DURATION),
    ("timeout", "999 ms", "from 1 s"),
    ("timeout", 0, "from 1 s"),
    ("timeout", -1, "from 1 s"),
    ("timeout", "never", "from 1 s"),
    ("timeout", math.nan, "from 1 s"),
    ("timeout", math.inf, "to 366 days"),
    ("timeout", "1e3", DURATION),
    ("timeout", "١٠ min", DURATION),
    ("watermark", -1, "from 0"),
    ("watermark", "never", "from 0"),
    ("idle_timeout", 0, "from 1 s"),
    ("min_pause", -1, "from 0"),
    ("min_pause", "soon", "from 0"),
    ("max_concurrent_checkpoints", 0, "from 1 to 100"),
    ("max_concurrent_checkpoints", 101, "from 1 to 100"),
    ("max_concurrent_checkpoints", "two", "from 1 to 100"),
    ("max_concurrent_checkpoints", 1.5, "from 1 to 100"),
    ("max_concurrent_checkpoints", True, "from 1 to 100"),
    ("tolerable_failed_checkpoints", -1, "from 0"),
    ("tolerable_failed_checkpoints", "1.0", "from 0"),
    ("allow_non_restored_state", "yes", "true or false"),
    ("allow_non_restored_state", 1, "true or false"),
    ("num_retained", 0, "from 1"),
    ("retain_for", "never", "from 0"),
    ("retain_per_day", -1, "from 0"),
    ("retain_days", 0, "from 1"),
    ("sample_rows", 101, "from 0 to 100"),
    ("sample_hidden", ["email"], "names of columns"),
    ("savepoint_interval", 0.5, "from 1 s"),
    ("savepoints_retained", 0, "from 1"),
    ("num_retained", 10**7, "to 1000000"),
    ("num_retained", "9" * 5000, "to 1000000"),
    ("max_unpublished", 0, "from 1"),
    ("max_unpublished", None, "from 1"),
    ("root", "", "a folder"),
    ("root", "a\0b", "a folder"),
    ("root", 7, "a folder"),
    ("root", "s3://user:secret@bucket/x", "without a password"),
    ("data", "  ", "a folder"),
    ("data", "a\x1b[31mb", "a folder"),
    ("spark.mode", "cluster", '"connect", "local" or "submit"'),
    ("spark.mode", "Local", '"connect", "local" or "submit"'),
    ("spark.remote", "localhost:15002", "sc://host:port"),
    ("spark.remote", "sc://", "sc://host:port"),
    ("spark.master", "local[0]", "local[N]"),
    ("spark.master", "mesos://x", "local[N]"),
    ("spark.memory", "2", "at least 512m"),
    ("spark.memory", "511m", "at least 512m"),
    ("spark.memory", "-2g", "at least 512m"),
    ("spark.memory", 2, "at least 512m"),
    ("spark.idle_timeout", 0, "from 1 s"),
    ("spark.start_timeout", 0, "from 1 s"),
    ("spark.conf.sql.shuffle.partitions", "2", "does not start with 'spark.'"),
    ("spark.conf.spark.master", "local", "use the setting spark.master"),
    ("spark.conf.spark.driver.memory", "1g", "use the setting spark.memory"),
    ("spark.conf.spark.x", [1], "a text, a number or true/false"),
    ("spark.conf", "a=b", "a table"),
    ("jobs.scoring.pool_slots", 0, "pool_slots is a whole number from 1"),
    ("jobs.scoring.pool_slots", True, "pool_slots is a whole number from 1"),
    ("jobs.scoring.pool", 7, "pool is the name of an Airflow pool"),
    ("jobs.scoring.queue", "", "queue is the name of a queue"),
    ("jobs.scoring.priority_weight", "high", "priority_weight is a whole number"),
    ("jobs.scoring.memory", "8g", "'memory' is no option of a job: write pool, "),
    ("jobs.Scoring.pool", "big", "job name 'Scoring' is not allowed"),
    ("jobs.scoring.spark.spark.executor.memory", "8g", "write jobs.scoring.spark.executor.memory"),
    ("jobs.scoring.spark.executor.memory", [8], "a text, a number or true/false"),
    ("jobs.scoring", "big", "no option of a job"),
]
NO_OPTIONS = ("jobs.scoring", "jobs.scoring.memory", "jobs.scoring.spark.spark.executor.memory")
"""Nobody knows what their values are."""


@pytest.mark.parametrize(("key", "value", "allowed"), BAD_VALUES)
def test_a_bad_value_is_refused_with_key_value_source_and_range(project, key, value, allowed):
    message = refusal(project, code={key: value})
    assert f"\n  - {key} = " in message
    hidden = "@" in str(value) or "conf" in key or key in NO_OPTIONS
    shown = "***" if hidden else ascii(value)[:40].rstrip("'\"")
    assert shown in message
    assert "(code): expected " in message
    assert allowed in message
    assert len(message) < 600
    assert all(line.isprintable() for line in message.splitlines())


@pytest.mark.parametrize(
    ("layers", "source"),
    [
        ({"env": {"TIDEGATE_TIMEOUT": "0"}}, "(TIDEGATE_TIMEOUT)"),
        ({"cli": {"timeout": "0"}}, "(-D)"),
        ({"code": {"timeout": "0"}}, "(code)"),
        ({"toml": 'interval = 5\ntimeout = "0"\n'}, "tidegate.toml line 2)"),
    ],
)
def test_a_bad_value_is_refused_in_every_layer(project, layers, source):
    message = refusal(project, **layers)
    assert "timeout = '0'" in message
    assert source in message


def test_a_bad_value_is_refused_even_where_a_later_layer_overrides_it(project):
    assert "timeout = 0 " in refusal(project, code={"timeout": 0}, cli={"timeout": "1 min"})


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ({"cli": {"intervall": "1"}}, "intervall = '1' (-D): no such setting; did you mean interval?"),
        ({"code": {"num_retain": 3}}, "did you mean num_retained?"),
        (
            {"toml": "spark_mode = 'local'\n"},
            "tidegate.toml line 1): no such setting; did you mean spark.mode?",
        ),
        ({"toml": "[spark]\nmaster_ = 'x'\n"}, "did you mean spark.master?"),
        (
            {"code": {"xyzzy": 1}},
            "no such setting; the settings are mode, interval, max_pause, initial_delay,",
        ),
        (
            {"env": {"TIDEGATE_TIMEOUTS": "1"}},
            "TIDEGATE_TIMEOUTS is not a setting of tidegate; did you mean TIDEGATE_TIMEOUT?",
        ),
        ({"env": {"TIDEGATE_QQQQ": "1"}}, "TIDEGATE_QQQQ is not a setting of tidegate; the settings are TIDEGATE_"),
        ({"env": {"TIDEGATE_SPARK_CONF": "a=b"}}, "spark.conf = *** (TIDEGATE_SPARK_CONF): expected a JSON object"),
        ({"env": {"TIDEGATE_SPARK_CONF": "[1]"}}, "expected a JSON object"),
        ({"toml": "interval = 5\ntimeout = 10 min\n"}, "tidegate.toml is not TOML:"),
        ({"toml": "interval = 5\ntimeout = 10 min\n"}, "line 2"),
        ({"toml": "interval = 5\ninterval = 6\n"}, "line 2"),
        ({"toml": "[timeout]\nx = 1\n"}, "timeout = {'x': 1}"),
        ({"toml": "storage_options = 3\n"}, "expected a table of texts"),
    ],
)
def test_what_is_no_setting_is_refused_with_a_hint(project, layers, expected):
    assert expected in refusal(project, **layers)


def test_a_file_that_is_not_text_is_refused(project):
    (project / "tidegate.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(project)


def test_other_variables_of_tidegate_are_let_pass(project):
    assert load(project, env={"TIDEGATE_JARS": "/x", "TIDEGATE_DEBUG": "1", "TIDEGATES": "?"}).timeout == 600.0


def test_everything_wrong_is_told_at_once(project):
    message = refusal(
        project,
        "num_retained = 0\n",
        env={"TIDEGATE_TIMEOUT": "x", "TIDEGATE_NOPE": "1"},
        code={"interval": -1},
        cli={"spark.mode": "x", "wat": "1"},
    )
    assert message.startswith("6 settings are wrong:\n")
    for part in ("num_retained", "timeout", "TIDEGATE_NOPE", "interval", "spark.mode", "wat"):
        assert part in message


def test_every_key_says_what_it_accepts_and_its_default_is_accepted(project):
    for key in KEYS.values():
        assert key.expected
        if key.default is not None and not key.table:
            load(project, code={key.name: key.default})


def test_paths_may_be_path_objects(project):
    assert load(project, code={"root": Path("a/../b")}).root == f"{project}/b"


def test_connections_are_tables_by_name_and_their_options_are_never_shown(project):
    toml = '[connections.shop]\nhost = "db"\nport = 5432\n[connections.events]\n"sasl.password" = "x"\n'
    (project / "tidegate.toml").write_text(toml)
    env = {"TIDEGATE_CONNECTIONS": json.dumps({"shop": {"password": CANARY}})}
    settings = load(project, env=env, cli={"connections.shop.host": "db2"})
    place = settings.place()
    assert place.connection("shop") == {"host": "db2", "port": "5432", "password": CANARY}
    assert place.connection("events") == {"sasl.password": "x"}
    assert CANARY not in repr(settings) + repr(place) + json.dumps(settings.record())
    with pytest.raises(Invalid, match="connection 'sho' does not exist") as refused:
        place.connection("sho")
    assert refused.value.expected == "one of events, shop"


def test_an_option_of_no_connection_is_refused(project):
    with pytest.raises(Invalid, match="is not an option of a connection"):
        load(project, code={"connections": {"password": CANARY}})


# -- what single jobs have of their own ------------------------------------------------------------------

OWN = {"jobs": {"scoring": {"pool": "big", "spark": {"executor.memory": "8g", "sql.shuffle.partitions": 400}}}}


def test_each_layer_adds_to_what_a_job_has_of_its_own(project):
    settings = load(
        project,
        toml="[spark]\nmode = 'submit'\n[jobs.scoring]\nqueue = 'gpu'\npool_slots = 2\n[jobs.main]\npool = 'small'\n",
        code=OWN,
        cli={"jobs.scoring.spark.executor.memory": "16g", "jobs.scoring.spark.driver.memory": "4g"},
    )
    scoring = settings.job("scoring")
    assert scoring.airflow == {"queue": "gpu", "pool_slots": 2, "pool": "big"}
    assert scoring.spark == {
        "spark.executor.memory": "16g",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "400",
    }
    assert (settings.job("main").airflow, settings.job("main").spark) == ({"pool": "small"}, {})
    assert settings.job("other").airflow == {}
    origins = {row.key: row.origin for row in settings.display_rows() if row.key.startswith("jobs.")}
    assert origins["jobs.scoring.pool"] == "code"
    assert origins["jobs.scoring.queue"].endswith("tidegate.toml line 4")
    assert origins["jobs.scoring.spark.executor.memory"] == "-D"


def test_a_job_cannot_have_memory_of_its_own_in_a_spark_that_all_share(project):
    told = refusal(project, code=OWN)
    assert "jobs.scoring.spark.executor.memory = '8g' (code): expected keys of a session" in told
    assert "spark.mode = 'connect' (default) runs all jobs in one Spark" in told
    assert "spark.mode = 'submit'" in told
    assert "shuffle" not in told, "sessions may differ in that"
    assert "spark.mode = 'local' (code)" in refusal(project, code={**OWN, "spark": {"mode": "local"}})
    assert "jobs.main.spark.driver.memory" in refusal(project, code={"jobs": {"main": {"spark.driver.memory": "1g"}}})


def test_run_another_way_this_once_it_does_without(project):
    """As in a test, or on the machine of a developer: the code is the one that is deployed."""
    settings = load(project, code={**OWN, "spark": {"mode": "submit"}}, cli={"spark.mode": "local"})
    assert settings.job("scoring").spark == {"spark.sql.shuffle.partitions": "400"}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("spark.sql.session.timeZone", "CET", "days and hours must not depend on who runs the job"),
        ("spark.master", "yarn", "Use the setting `master`"),
        ("spark.submit.deployMode", "cluster", "Use mode submit as it is"),
        ("spark.jars.packages", "a:b:c", "nothing is downloaded at run time"),
        ("spark.x y", "1", "a key that begins with"),
        ("spark.driver.memory", "plenty", "at least 512m"),
    ],
)
def test_what_spark_conf_may_not_say_a_job_may_not_either(project, key, value, told):
    refused = refusal(project, code={"spark": {"mode": "submit"}, "jobs": {"scoring": {key: value}}})
    assert f"jobs.scoring.{key} = " in refused
    assert told in refused


def test_passwords_of_a_job_are_not_shown(project):
    secret = {"scoring": {"spark.hadoop.fs.s3a.secret.key": CANARY, "pool": "big"}}
    settings = load(project, code={"spark": {"mode": "submit"}, "jobs": secret})
    assert settings.job_display_rows("scoring") == {"pool": "big", "spark.hadoop.fs.s3a.secret.key": "***"}
    assert CANARY not in repr(settings) + repr(settings.display_rows()) + repr(settings.record()) + repr(
        settings.job("scoring")
    )
