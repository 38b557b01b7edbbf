"""Every bench still runs, in its quick form, and says what it must. No figure is looked at."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.bench import __main__ as bench
from tests.bench.formula import BYTES, STEPS, Constants, Shape, documented
from tests.bench.harness import ROOT, Budget, Options, Result, in_turn
from tests.kit import sampling
from tests.kit.jvm import OPTIONS
from tests.kit.sampling import ALL, turn_of

pytestmark = sampling.in_turn(seconds=100)

KEYS = {
    "append": {"rival_s", "ratio", "ratio_partitioned"},
    "overhead": {"rss_mb"},
    "upsert": {"rival_s", "ratio", "ratio_checkpoint"},
    "state": {"ratio_streaming_5m", "ratio_merge_5m", "growth_1m_20m", "growth_clustered", "events_per_s_1m"},
    "restore": {"rival_s", "ratio", "growth_1m_20m"},
    "window": {"rival_s", "ratio", "ratio_cores"},
    "gates": {"rival_s", "ratio", "overhead_ratio"},
    "latency": {"rival_s", "ratio", "last_s", "last_rival_s", "last_ratio"},
    "pipelined": {"rival_s", "ratio", "channel_ratio"},
    "dag": {"rival_s", "ratio", "extra_s"},
    "parse": {"rival_s", "ratio", "extra_s"},
    "requests": {"requests", "requests_no_commits", "bytes", "constants"},
    "large_state": {"100 GB", "1 TB", "10 TB"},
    "pipelines": {"airflow_cpu_s", "file_cpu_s", "serialized_bytes", "rows_by_run"},
    "ledger": {"latest_s", "page_s", "distinct_ids"},
    "scale": {"trigger_s", "growth", "requests"},
    "page": {"page_p95_s", "cold_p95_s", "one_p95_s", "http_p95_s", "written_p50_s", "files", "answer_cpu_s"},
    "changing_columns": {"rival_s", "ratio", "ratio_keys", "ratio_drifting"},
    "postgres": {"rival_s", "ratio", "ratio_upsert"},
    "kafka": {"rival_s", "ratio", "ratio_cores", "plan_s"},
    "cluster": {"ratio_streaming", "ratio_merge", "ratio_counts", "ratio_gates", "by_workers"},
    "backfill": {"rival_s", "ratio_refresh", "speedup"},
    "beside": {"rival_s", "ratio", "ratio_cores", "proposal_cores", "reports"},
    "nexmark": {"rival_s", "ratio_streaming", "ratio_flink_rocksdb", "worst_ratio_streaming", "from_1"},
    "events": {"p50_s", "p95_s", "files_p50_s", "topic_p50_s", "idle_share"},
    "floor": {"rival_s", "ratio", "first_s", "example_s", "one_operator_s"}
    | {"queries", "jobs", "tasks", "idle_cpu_s", "idle_queries"},
}


LONG = ("dag", "parse", "pipelined", "latency", "backfill", "beside", "nexmark", "events")
LOOKED_AT = ("ledger", "requests")
"""Of these more than their keys is looked at."""
RUN = [
    *LOOKED_AT,
    *turn_of([name for name in bench.BENCHES if ALL or name not in (*bench.ALONE, *LONG, *LOOKED_AT)], 6),
    *([] if ALL else turn_of(LONG, len(LONG))),
]
"""Not the cluster's, which takes as long as all others: `make test ALL=1`."""


def test_each_bench_has_its_keys_written_down():
    assert KEYS.keys() == bench.BENCHES.keys()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One process for all, so that one JVM does."""
    out = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "tests.bench", *RUN, "--quick", "--out", str(out)]
    env = {**os.environ, "JAVA_TOOL_OPTIONS": OPTIONS}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((out / f"{name}.json").read_text()) for name in RUN}


@pytest.mark.parametrize("name", RUN)
def test_a_bench_writes_one_line_with_all_keys_and_equal_results(results, name):
    line = results[name]
    assert {"bench", "ours_s", "pairs", "equal"} | KEYS[name] <= line.keys()
    assert (line["bench"], line["equal"], line["quick"]) == (name, True, True)


def test_every_trigger_gets_an_id_of_its_own(results):
    assert results["ledger"]["distinct_ids"] == 8


def test_the_constants_that_are_written_down_are_those_of_the_code(results):
    """Else: `make scale` writes new ones. Few checkpoints are retained here, and no file of the history is merged."""
    counted, told = Constants.from_json(results["requests"]["constants"]), documented()
    shape = Shape(2, 4, 2)
    for step in (*STEPS[:-1], BYTES):
        expected = told.of(step, shape, 5, 5)
        assert counted.of(step, shape, 5, 5) == pytest.approx(expected, rel=0.15, abs=3), step


def test_an_unknown_bench_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["apend"])
    assert stopped.value.code == 2
    assert (
        "no bench 'apend'; there are: append, overhead, upsert, state, restore, window, gates, pipelined, latency, "
        "dag, parse, requests, large_state, pipelines, ledger, scale, page, changing_columns, postgres, kafka, "
        "cluster, backfill, beside, nexmark, events, floor" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("equal", "code"), [(True, 0), (False, 1)])
def test_unequal_results_fail_and_a_missed_budget_does_not(monkeypatch, tmp_path, capsys, equal, code):
    result = Result(
        "x", 9.0, 5, rival_s=3.0, ratio=3.0, equal=equal, wrong="[5] rows, not 6", budgets=(Budget("ratio", 0.5),)
    )
    monkeypatch.setattr(bench, "BENCHES", {"x": ""})
    monkeypatch.setitem(sys.modules, "tests.bench.x", SimpleNamespace(run=lambda options: result))
    assert bench.main(["x", "--out", str(tmp_path)]) == code
    shown = capsys.readouterr().out
    assert "over 0.5" in shown
    assert ("[5] rows, not 6" in shown) == (not equal)
    assert json.loads((tmp_path / "x.json").read_text())["equal"] is equal


def test_both_sides_take_turns_and_the_ratio_is_the_median_of_pairs():
    turns = []
    ours = iter([100.0, 1.0, 8.0, 3.0])
    turned = in_turn(
        lambda number: (turns.append(f"a{number}"), next(ours))[1],
        lambda number: (turns.append(f"b{number}"), 2.0)[1],
        warmups=1,
        pairs=3,
    )
    assert turns == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert turned.wall().ratios == [0.5, 4.0, 1.5]
    assert turned.wall().ratio == 1.5


def test_what_is_expensive_is_made_once_and_a_half_made_one_is_made_again(tmp_path):
    options = Options(quick=True, out=tmp_path)

    def fails(folder):
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        options.cached("base", fails)
    made = options.cached("base", lambda folder: (folder / "whole").touch())
    assert [file.name for file in made.iterdir()] == ["whole"]
    assert options.cached("base", fails) == made
