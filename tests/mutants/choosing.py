"""Which changes are tried, and which of the tests that reach one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence

from tests.mutants.changes import LIBRARY, PACKAGES, ROOT, Change, changes_of, modules_of
from tests.mutants.records import Reaching

__all__ = ["choose_changes", "choose_tests", "files_for"]

QUICK = (
    "tests/unit", "tests/contract", "tests/test_bad_inputs.py", "tests/simulation", "tests/model",
    "tests/crash/test_four_jobs.py",
)  # fmt: skip
SLOW = {
    "connectors|state|operators|gates": ("tests/spark",),
    "connectors/postgres": (
        "tests/connectors/test_postgres_changes_source.py", "tests/connectors/test_postgres_contracts.py",
        "tests/connectors/test_postgres_other_histories.py", "tests/connectors/test_postgres_publishing.py",
        "tests/connectors/test_postgres_table_source.py", "tests/connectors/test_postgres_types.py",
    ),
    "connectors/kafka": (
        "tests/connectors/test_kafka_contract.py", "tests/connectors/test_kafka_planning.py",
        "tests/connectors/test_kafka_records.py", "tests/connectors/test_kafka_sink.py",
        "tests/connectors/test_kafka_source.py",
    ),
    "connectors/files/export|connectors/iceberg": (
        "tests/connectors/test_file_export.py", "tests/connectors/test_iceberg.py",
    ),
    "dag": ("tests/dags/test_operators.py",),
}  # fmt: skip
"""Of which modules: tests that need Spark, a broker, a database or Airflow."""
LEFT_OUT = re.compile(
    r"planted|unit/spark/|unit/test_(setup|jars|first_minutes|readme|secrets|compose)|unit/cli/test_(new_project|up|spark)"
    r"|spark/test_(abandoned|class_archive|cli_run|connect|disaster|docs|local_session|nexmark|new_project|object_storage"
    r"|other_disk|random_histories|sources_connect|sql_random|submit|testing|versions|work)"
)
"""They test other tests, installations, servers; or their stories are longer than the time that there is."""

QUICK_S, SLOW_S = 30.0, 40.0
"""The time, as recorded, of the tests that are chosen."""


def choose_changes(count: int, seed: int, files: Sequence[str] = ()) -> list[Change]:
    """Return so many changes, of the packages in turn, or of these files. Each is of another statement."""
    dice = random.Random(seed)
    groups = [list(files)] if files else [modules_of(package) for package in PACKAGES]
    places = [_places(group) for group in groups]
    chosen: list[Change] = []
    while len(chosen) < count and any(places):
        for group in places:
            while group and len(chosen) < count:
                possible = group.pop(dice.randrange(len(group)))
                change = dice.choice(possible)
                if change.compiles():
                    chosen.append(change)
                    break
    return chosen


def _places(files: Sequence[str]) -> list[list[Change]]:
    """The changes of each line."""
    of_lines: dict[tuple[str, int], list[Change]] = {}
    for file in files:
        for change in changes_of(file):
            of_lines.setdefault((file, change.line), []).append(change)
    return list(of_lines.values())


def files_for(changes: Iterable[Change]) -> list[str]:
    """The test files among which are those that reach the changes."""
    modules = {change.file.removeprefix(f"{LIBRARY}/") for change in changes}
    folders = [*QUICK, *(each for of, paths in SLOW.items() if any(re.match(of, m) for m in modules) for each in paths)]
    return list(dict.fromkeys(_test_files(folders)))


def _test_files(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        path = ROOT / folder
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            name = str(file.relative_to(ROOT))
            if not LEFT_OUT.search(name):
                yield name


def choose_tests(change: Change, reaching: Iterable[Reaching]) -> list[Reaching]:
    """Return those tests that there is time for: of the package's own folder first, then the quickest; and after those
    that run without Spark or a server, those that need one."""
    left = {True: QUICK_S, False: SLOW_S}
    chosen: dict[str, list[Reaching]] = {}
    ranked = sorted(reaching, key=lambda each: (not _is_quick(each), not _is_near(each, change), each.seconds))
    for each in ranked:
        if left[_is_quick(each)] >= each.seconds:
            left[_is_quick(each)] -= each.seconds
            chosen.setdefault(each.file, []).append(each)
    return [each for tests in chosen.values() for each in tests]


def _is_quick(test: Reaching) -> bool:
    return not test.file.startswith(("tests/spark", "tests/connectors", "tests/dags"))


def _is_near(test: Reaching, change: Change) -> bool:
    return f"/{change.package}/" in test.file
