"""A DAG that Airflow knows, without a DAG processor: as if that had read its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tests.kit.aside_gate import Aside
from tests.kit.toy_world import ToyWorld
from tidegate.delta import Location, open_table
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.records.codec import encode
from tidegate.records.records import PublishedTable

CANARY = "hunter2CANARY"
"""Wherever a DAG's code says how to log in somewhere. Nobody may see it."""
DAG_FILE = """
from pathlib import Path
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

conf = {{
    "spark.hadoop.fs.azure.sas.box.account": {canary!r},
    "spark.hadoop.fs.s3a.encryption.key": {canary!r},
    "spark.executorEnv.DB_PWD": {canary!r},
    "spark.driver.extraJavaOptions": "-Dapi_key=" + {canary!r},
    "spark.sql.catalog.lake.uri": "https://host/x?sig=" + {canary!r},
}}
pipeline = Pipeline(
    "orders",
    interval="never",
    root={root!r},
    data={root!r},
    storage_options={{"anything": {canary!r}}},
    spark={{"conf": conf, "remote": "sc://host/;x-key=" + {canary!r}}},
)
rows = pipeline.source("in", Generator(rows=3))
judged = rows.gate(Volume(least=1), name="enough")
judged.sink("a", DeltaAppend("a"))
judged.sink("b", DeltaUpsert("b", keys=["id"]))
dag = build_dag(pipeline, project={root!r})
"""


SIXTY = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

pipeline = Pipeline("sixty", interval="never", root={root!r}, data={root!r})
judged = []
for n in range(10):
    rows = pipeline.source(f"region_{{n}}_orders", Generator(rows=3))
    judged.append(rows.gate(Volume(least=1), name=f"enough_of_region_{{n}}"))
    judged[-1].sink(f"orders_of_region_{{n}}", DeltaAppend(f"region_{{n}}"))
    counted = judged[-1].aggregate(by=["key"], n="count(*)", uid=f"counted_{{n}}")
    counted.sink(f"counts_of_region_{{n}}", DeltaUpsert(f"counts_{{n}}", keys=["key"]))
for n in range(0, 10, 2):
    both = judged[n].join(judged[n + 1], on=["key"], uid=f"regions_{{n}}_and_{{n + 1}}_by_key")
    both.sink(f"pairs_{{n}}", DeltaAppend(f"pairs_{{n}}"))
dag = build_dag(pipeline, project={root!r})
"""
"""Ten regions of five parts, and five pairs of them."""


def put_dag(root: Path, name: str = "orders", text: str = DAG_FILE) -> None:
    """A pipeline, whose ledger is in this folder."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    found: dict[str, Any] = {}
    file = root / "dags" / f"{name}_dag.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.format(root=str(root), canary=CANARY))
    exec(compile(file.read_text(), str(file), "exec"), found)
    lazy = LazyDeserializedDAG.from_dag(found["dag"])
    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
        session.commit()
        SerializedDAG.bulk_write_to_db("dags-folder", None, [lazy], session=session)
        session.commit()
        SerializedDagModel.write_dag(lazy, bundle_name="dags-folder", session=session)


def set_aside(world: ToyWorld, values: dict[str, list[Any]], rules: Sequence[str], by: int = 1) -> list[str]:
    """Rows in quarantine of the gate `enough`, each of which broke these rules in checkpoint `by`; answers with their
    ids."""
    from deltalake import write_deltalake

    count = len(next(iter(values.values())))
    ids = [f"{n:032x}" for n in range(1, count + 1)]
    own = {
        q.ID: ids,
        q.CHECKPOINT: [by] * count,
        q.STREAM: ["in"] * count,
        q.RULES: [list(rules)] * count,
        q.SETTLED: pa.nulls(count, pa.string()),
        q.SETTLED_IN: pa.nulls(count, pa.int64()),
        q.SETTLED_BY: pa.nulls(count, pa.string()),
    }
    path = QuarantineSink("enough").path(world.ledger.home)
    write_deltalake(path, pa.table({**own, **values}), mode="overwrite", schema_mode="overwrite")
    return ids


def put_table(world: ToyWorld, id: int, sink: str, path: Path, version: int) -> None:
    """Let the records of a checkpoint say that this version of a real table is what it has published."""
    table = open_table(Location(str(path)), version)
    published = world.ledger.published(id)
    assert table is not None
    assert published is not None
    there = PublishedTable(uri=str(path), version=version, log_hash=table.log_hash)
    put = msgspec.structs.replace(published, tables=published.tables | {sink: there}, paths={})
    world.path(id, "published.json").write_bytes(encode(put))


def sets_aside(world: ToyWorld) -> None:
    """By the code of its newest checkpoint, gate `enough` sets rows aside: so what is asked of it is taken up."""
    world.gates = {"enough": Aside(quarantines=True)}
    world.coordinator().abort(world.trigger("airflow:orders:aside"), "CANCELLED", "by hand")
    world.gates = {}
