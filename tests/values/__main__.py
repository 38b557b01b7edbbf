"""`make values`: each type and its edges, in each use of a column, from each source to each sink and its readers."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("AIRFLOW_HOME", f"{tempfile.gettempdir()}/tidegate-values-airflow")

from tests.kit.jvm import INTERPRETED
from tests.kit.postgres import Server
from tests.values.case import SINKS, Case, ValuesReport
from tests.values.edges import KINDS
from tests.values.inputs import FORMATS
from tests.values.places import postgres_if_any
from tests.values.roles import ROLES
from tidegate.spark.session import SparkSettings, session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.values", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--minutes", type=float, help="end after so many")
    parser.add_argument("--kind", choices=list(KINDS), help="of this type only")
    parser.add_argument("--format", choices=FORMATS, help="from this kind of source only")
    parser.add_argument("--roles", nargs="*", default=[], choices=list(ROLES), help="these, in place of random ones")
    parser.add_argument("--to", choices=SINKS, help="to this kind of sink only")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    told, began = ValuesReport(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-values-") as folder:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="2g", conf=INTERPRETED
        )
        with session(settings) as spark, postgres_if_any() as postgres:
            for seed in seeds:
                if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
                    break
                _one(seed, options, Path(folder) / str(seed), spark, postgres, told)
    print(told)
    for what, counts in (("check", told.refused), ("their rows", told.refused_rows)):
        print(
            f"refused by {what}: " + ", ".join(f"{kind} as {role} ×{n}" for (kind, role), n in sorted(counts.items()))
        )
    print(f"read: {dict(told.read)}")
    return 1 if told.wrong else 0


def _one(
    seed: int, options: argparse.Namespace, folder: Path, spark: object, postgres: Server | None, told: ValuesReport
) -> None:
    began = time.monotonic()
    case = Case.of(seed, options.kind, options.format, options.roles, options.to, postgres is not None)
    found = case.play(folder, spark, postgres)
    shutil.rmtree(folder, ignore_errors=True)
    told.add(found)
    print(f"{seed}: {case}: {time.monotonic() - began:.1f} s", flush=True)
    for each in found.wrong:
        print(f"  WRONG {each}", flush=True)
    if found.wrong:
        print(f"  replay: make values SEED={seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
