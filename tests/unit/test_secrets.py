"""Planted secrets: what logs in somewhere is in no record, on no card, in no documentation, in no answer of the CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate import Pipeline
from tidegate.checkpoint import troubles
from tidegate.config import Settings, load_settings
from tidegate.config.settings import masked
from tidegate.dag.document import dag_text
from tidegate.errors import Unavailable
from tidegate.pipeline.card import card_of
from tidegate.records.masking import is_harmless, without_logins
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

CANARY = "hunter2CANARY"
CONF = {
    "spark.hadoop.fs.azure.sas.box.account.blob.core.windows.net": CANARY,
    "spark.hadoop.fs.azure.sas.fixed.token.account": CANARY,
    "spark.hadoop.fs.s3a.encryption.key": CANARY,
    "spark.hadoop.fs.s3a.server-side-encryption.key": CANARY,
    "spark.executorEnv.DB_PWD": CANARY,
    "spark.kubernetes.driverEnv.WHATEVER": CANARY,
    "spark.driver.extraJavaOptions": f"-XX:+UseG1GC -Dapi_key={CANARY}",
    "spark.sql.catalog.lake.uri": f"https://host/lake?sig={CANARY}&sv=1",
    "spark.sql.catalog.lake.jdbc.passphrase": CANARY,
    "spark.sql.warehouse.dir": f"s3a://key:{CANARY}@bucket/x",
    "spark.databricks.delta.something.token": CANARY,
    "spark.hadoop.fs.s3a.endpoint": f"https://me:{CANARY}@host",
    "spark.sql.shuffle.partitions": "7",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    code = {"storage_options": {"anything": CANARY}, "root": str(tmp_path / "ledger")}
    spark = {"remote": f"sc://me:{CANARY}@host:1/;token={CANARY};x-api-key={CANARY};use_ssl=true", "conf": CONF}
    return load_settings(code=code | {"spark": spark}, start=tmp_path)


def test_values_are_shown_of_keys_that_are_known_to_be_harmless_only(settings: Settings):
    pipeline = Pipeline("shop")
    pipeline.source("in", Generator(rows=1)).sink("a", DeltaAppend("a"))
    graph = pipeline.graph(settings.place())
    shown = {row.key: row.value for row in settings.display_rows()}
    for text in (str(shown), json.dumps(settings.record()), card_of(graph, settings, "x"), dag_text(graph, settings)):
        assert CANARY not in text
    assert shown["spark.conf.spark.sql.shuffle.partitions"] == "7"
    assert shown["spark.conf.spark.hadoop.fs.s3a.endpoint"] == "https://***@host"
    assert shown["spark.remote"] == "sc://***@host:1/;token=***;x-api-key=***;use_ssl=true"
    assert {shown[f"spark.conf.{name}"] for name in CONF if not is_harmless(name)} == {"***"}


def test_no_record_holds_what_logs_in_somewhere(settings: Settings, tmp_path: Path):
    """Not the plan, not the reason of an abort, not what is left beside the log."""
    world = ToyWorld(tmp_path / "ledger", limits=settings)
    world.checkpoint("one", rows=2)
    failed = world.trigger("two")
    said = f"GET https://a.blob.core.windows.net/x?sv=2&sig={CANARY}: 403, with Authorization: Bearer {CANARY}"
    error = Unavailable(f"{said}\njdbc:postgresql://u:{CANARY}@db/x password={CANARY}", help=f'{{"token": "{CANARY}"}}')
    troubles.record_error(world.ledger, "two", "job_main", error)
    world.coordinator().abort(failed, "JOB_FAILED", str(error))
    files = [file for file in (tmp_path / "ledger").rglob("*") if file.is_file()]
    assert {"plan.json", "decision.json", "trouble.json"} <= {file.name for file in files}
    assert [file.name for file in files if CANARY.encode() in file.read_bytes()] == []


def test_what_earlier_versions_have_kept_is_masked_when_it_is_shown():
    kept = {"timeout": "10 min", "num_retained": 3, "spark.conf": CONF, "storage_options": {"a": CANARY}, "x": CANARY}
    told = masked(kept)
    assert CANARY not in str(told)
    assert (told["timeout"], told["num_retained"]) == ("10 min", 3)
    assert told["spark.conf"]["spark.sql.shuffle.partitions"] == "7"


@pytest.mark.parametrize(
    "text",
    [
        "abfss://box@account.dfs.core.windows.net/a/b",
        "s3a://bucket/day=2026-01-01/part-0.parquet",
        "column 'key' of sink 'totals': expected long, found string (order_id=7)",
        "write to ann@example.org",
        "k8s://https://host:6443",
        "`tidegate resume orders` lets it go on; see https://example.org/a?page=",
    ],
)
def test_what_is_no_login_is_left_as_it_is(text: str):
    assert without_logins(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{CANARY}@host/x",
        f"https://{CANARY}@host/x",
        f"https://user:p@ss{CANARY}@host/x",
        f"k8s://https://user:{CANARY}@host:6443",
        f"wasbs://box@account.blob.core.windows.net/x?sig={CANARY}",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"'fs.azure.account.key': '{CANARY}'",
        f"--conf spark.x.password='{CANARY}'",
    ],
)
def test_a_login_in_a_text_is_masked(text: str):
    assert CANARY not in without_logins(text)
