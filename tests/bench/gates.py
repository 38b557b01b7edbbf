"""Ten usual expectations over a million rows, judged while they are staged, the bad ones set aside.

The rival stages the same rows without a gate, and then has Great Expectations validate what was staged; it sets
nothing aside. `overhead_ratio`: the same checkpoint against one without a gate. Great Expectations is asked as its
users do, with the few samples that it gives by default, as tidegate does too; `ratio_lean` is against the way that is
fastest for it and still counts: no samples, nothing persisted.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.harness import Budget, Options, Pairs, Result, in_turn, median_of
from tests.bench.spark import sessions
from tests.bench.worlds import BenchedPipeline
from tidegate.gates import Expectations
from tidegate.gates.expectations.suite import Suite, read_suite
from tidegate.sinks import DeltaAppend

SCHEMA = (
    "id long, customer long, country string, status string, amount decimal(12,2), discount double, at timestamp,"
    " day date, email string, note string"
)
FILES = 4
SUITE = """
name: bench
expectations:
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}}
  - {type: expect_compound_columns_to_be_unique, kwargs: {column_list: [customer, at]}}
  - {type: expect_column_values_to_not_be_null, kwargs: {column: customer}}
  - {type: expect_column_values_to_be_in_set, kwargs: {column: country, value_set: [AT, BE, CH, DE, ES]}}
  - {type: expect_column_values_to_be_in_set, kwargs: {column: status, value_set: [new, paid, sent]}}
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0}}
  - {type: expect_column_values_to_be_between, kwargs: {column: discount, min_value: 0, max_value: 1}}
  - {type: expect_column_values_to_match_regex, kwargs: {column: email, regex: "^[^@]+@[^@]+$"}}
  - {type: expect_column_value_lengths_to_be_between, kwargs: {column: note, min_value: 1, max_value: 100}}
  - {type: expect_table_row_count_to_be_between, kwargs: {min_value: 1}}
"""
BAD = 100
"""Every so manieth row is bad."""


def run(options: Options) -> Result:
    rows = options.size(1_000_000, 2_000)
    files = sorted(options.cached("gates-input", lambda folder: make_input(options, folder, rows)).glob("*.parquet"))
    suite = read_suite(SUITE, "bench.yaml", "bench")
    gated = world(options, "gates", Expectations("bench", on_failure="quarantine"))
    plain = world(options, "gates-plain", None)
    theirs: list[list[int]] = []

    def before(number: int) -> None:
        gated.land(number, files)
        plain.land(number, files)

    turns = in_turn(
        lambda number: sum(gated.checkpoint().values()),
        lambda number: sum(plain.checkpoint().values()),
        lambda number: theirs.append(validate(suite, staged(plain, files))),
        lambda number: theirs.append(validate(suite, staged(plain, files), lean=True)),
        warmups=options.size(4, 0),
        pairs=options.pairs,
        before=before,
    )
    walls = [[wall for wall, _ in sides] for sides in turns.rounds]
    pairs = Pairs([ours for ours, *_ in walls], [plain + checked for _, plain, checked, _ in walls])
    lean = Pairs([ours for ours, *_ in walls], [plain + checked for _, plain, _, checked in walls])
    cores = [[core for _, core in sides] for sides in turns.rounds]
    wrong = differs(gated, rows, theirs[-1]) or differs(gated, rows, theirs[-2])
    return Result(
        "gates",
        ours_s=statistics.median(pairs.ours),
        pairs=options.pairs,
        rival_s=statistics.median(pairs.rival),
        ratio=pairs.ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "spread": pairs.spread(),
            "ratio_cores": Pairs([a for a, *_ in cores], [b + c for _, b, c, _ in cores]).ratio,
            "ratio_lean": lean.ratio,
            "overhead_ratio": turns.wall().ratio,
            "overhead_ratio_cores": turns.core().ratio,
            "plain_s": statistics.median(turns.wall().rival),
            "parts": median_of(gated.parts[-options.pairs :]),
            "rows": rows,
        },
        budgets=(Budget("ratio", 0.4), Budget("overhead_ratio", 1.8)),
    )


def world(options: Options, name: str, gate: Expectations | None) -> BenchedPipeline:
    root = options.folder(name)
    (root / "include" / "expectations").mkdir(parents=True)
    (root / "include" / "expectations" / "bench.yaml").write_text(SUITE)
    return BenchedPipeline(
        root, SCHEMA, lambda rows: rows.withColumn("email", lower(rows)), DeltaAppend("tables/t"), options.spark, gate
    )


def lower(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return f.lower(rows["email"])


def make_input(options: Options, folder: Path, rows: int) -> None:
    """Orders; of each hundred one is bad, in one of five ways."""
    rows_of(sessions(options.spark)(), rows).write.mode("overwrite").parquet(str(folder))


def rows_of(spark: Any, rows: int) -> Any:
    """So many orders."""
    how = f"if(id % {BAD} = 0, pmod(id / {BAD}, 5), -1)"
    return spark.range(0, rows, 1, FILES).selectExpr(
        f"if({how} = 0, id - id % {BAD} + 1, id) AS id",
        "pmod(xxhash64(id), 50000) AS customer",
        f"if({how} = 1, 'XX', element_at(array('AT', 'BE', 'CH', 'DE', 'ES'), cast(pmod(hash(id), 5) AS int) + 1))"
        " AS country",
        "element_at(array('new', 'paid', 'sent'), cast(pmod(hash(id, 3), 3) AS int) + 1) AS status",
        f"cast(if({how} = 2, -1, pmod(hash(id, 1), 100000) / 100) AS decimal(12,2)) AS amount",
        f"if({how} = 3, 2.0, pmod(hash(id, 2), 100) / 100) AS discount",
        "timestamp_micros(1700000000000000 + id * 1000) AS at",
        "date_add(date'2026-01-01', cast(pmod(id, 365) AS int)) AS day",
        f"if({how} = 4, 'nobody', concat('C', id, '@example.org')) AS email",
        "concat('order ', id, ' of ', pmod(hash(id, 2), 1000)) AS note",
    )


def staged(plain: BenchedPipeline, files: list[Path]) -> Any:
    """What the last checkpoint without a gate has staged."""
    paths = [f"{plain.root}/tables/t/{path}" for path in staged_paths(plain)]
    return plain.sessions().read.schema(SCHEMA).parquet(*paths)


def staged_paths(plain: BenchedPipeline) -> list[str]:
    """The files of it, in the table's folder."""
    from tidegate.connectors.delta.sink.table import StagedBatch

    ledger = plain.control.ledger
    acked = ledger.ack(ledger.view().last_id, "main")
    assert acked is not None
    batch = msgspec.convert(ledger.unpack(acked.ack.sinks["table"]), StagedBatch)
    return [file.path for file in batch.files]


def validate(suite: Suite, frame: Any, *, lean: bool = False) -> list[int]:
    """Great Expectations on its own: how many rows break each rule that speaks of rows."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    asset = context.data_sources.add_spark("spark", persist=not lean).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    rules = [{"type": rule.type, "kwargs": dict(rule.kwargs), "meta": {"n": n}} for n, rule in enumerate(suite.rules)]
    said = batch.validate(
        gx.ExpectationSuite(name="bench", expectations=rules),
        result_format={"result_format": "BASIC", "partial_unexpected_count": 0} if lean else {"result_format": "BASIC"},
    )
    frame.unpersist()  # which it does not do itself
    found = sorted(said.results, key=lambda result: result.expectation_config.meta["n"])
    return [result.result.get("unexpected_count", 0) for result in found]


def differs(gated: BenchedPipeline, rows: int, theirs: list[int]) -> str:
    """Both count the same bad rows, and every row is in one of both tables."""
    ledger = gated.control.ledger
    acked = ledger.ack(ledger.view().last_id, "main")
    assert acked is not None
    verdict = acked.ack.gates["checked"]
    results = ledger.unpack(verdict.results)["results"]
    ours = [result["result"].get("unexpected_count", 0) for result in results]
    kept = acked.ack.stats.rows["table"]
    if ours == theirs and verdict.quarantined > 0 and kept + verdict.quarantined == rows == verdict.rows:
        return ""
    return f"ours counts {ours}, Great Expectations {theirs}; {kept} kept, {verdict.quarantined} aside, of {rows}"
