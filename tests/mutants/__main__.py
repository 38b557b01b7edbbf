"""`make mutants`: one line of the product is changed at a time, and the tests that reach it must notice."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.changes import ROOT, Change, planted_in
from tests.mutants.choosing import choose_changes, choose_tests, files_for
from tests.mutants.planted import planted
from tests.mutants.records import Reaching, Records
from tests.mutants.running import LIMIT_S, Outcome, Trials

AT_ONCE = 20
"""The files that one process records."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="the changes with these numbers, as they are printed")
    parser.add_argument(
        "--planted",
        nargs="*",
        metavar="PART",
        help="in place of a sample: those that an audit made, by a part of their names",
    )
    parser.add_argument("--change", nargs=3, action="append", metavar=("FILE", "BEFORE", "AFTER"), help="this one")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of tests for each change, %(default)s")
    parser.add_argument("--files", nargs="*", default=(), help="change these modules only")
    parser.add_argument("--tests", nargs="*", help="run these test files only")
    parser.add_argument("--records", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--record", action="store_true", help="only record which tests reach which line")
    parser.add_argument("--no-record", action="store_true", help="only use what was recorded before")
    options = parser.parse_args()
    changes = [planted_in(*change, "chosen") for change in options.change or ()]
    if options.planted is not None:
        parts = options.planted or [""]
        changes += [change for name, change in planted().items() if any(part in name for part in parts)]
    elif not changes:
        changes = choose_changes(options.mutants, options.seed, options.files)
    files = options.tests or files_for(changes)
    records = Records(options.records, files) if options.no_record else _recorded(options.records, files)
    if options.record:
        return 0
    counts, unnoticed = Counter[str](), list[str]()
    trials = Trials()
    try:
        unchanged = _Unchanged(trials, options.limit)
        for number, change in enumerate(changes, 1):
            if options.only and number not in options.only:
                continue
            verdict, more = _try(change, records, unchanged)
            counts[verdict] += 1
            print(f"{number:4} {verdict:12} {change}: {more}", flush=True)
            if verdict != "noticed":
                text = change.diff().replace("\n", "\n       ")
                print(f"       {text}", flush=True)
                unnoticed.append(f"{number:4} {verdict:12} {change}: {more}\n       {text}")
    finally:
        trials.close()
    tried = sum(counts.values())
    print(f"\n{counts['noticed']} of {tried} changes are noticed: {counts['noticed'] / max(tried, 1):.0%}")
    if unnoticed:
        print("\n".join([*unnoticed, f"replay one: make mutants SEED={options.seed} MUTANTS={options.mutants} ONLY=…"]))
    return 1 if unnoticed else 0


def _recorded(folder: Path, files: Sequence[str]) -> Records:
    """What the test files reach; those of which it is not known are run now."""
    records = Records(folder, files)
    if not records.stale:
        return records
    print(f"recording which lines {len(records.stale)} of {len(files)} test files reach", flush=True)
    for first in range(0, len(records.stale), AT_ONCE):
        some = records.stale[first : first + AT_ONCE]
        log = folder / "recording.log"
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            command = [sys.executable, "-m", "tests.mutants.recorder", str(folder), *some]
            code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode
        print(f"  {first + len(some)} files, exit code {code}", flush=True)
    records = Records(folder, files)
    if records.stale:
        print(f"  of these nothing is known, see {log}: {', '.join(records.stale)}", flush=True)
    return records


class _Unchanged:
    """Whether tests pass without any change: one that does not has noticed nothing."""

    def __init__(self, trials: Trials, limit: float) -> None:
        self.trials = trials
        self.limit = limit
        self.passing: dict[str, bool] = {}

    def passes(self, test: Reaching) -> bool:
        if test.name not in self.passing:
            self.passing[test.name] = self.trials.run(None, [test], self.limit).passed == [test.name]
        return self.passing[test.name]


def _try(change: Change, records: Records, unchanged: _Unchanged) -> tuple[str, str]:
    """The verdict about a change, and by which tests."""
    reaching = records.reaching(change)
    left = choose_tests(change, reaching)
    if not left:
        return "not reached", "by no test" if not reaching else f"{len(reaching)} tests reach it, all too long"
    outcome = Outcome()
    while left:
        outcome = unchanged.trials.run(change, left, unchanged.limit)
        failed = next((each for each in left if each.name == outcome.failed), None)
        if failed is None or unchanged.passes(failed):
            break
        left.remove(failed)
    if not left:
        return "not judged", f"all tests that reach it fail without it, too: {outcome.failed}: {outcome.why}"
    took = f"{outcome.seconds:.0f} s"
    if outcome.failed:
        return "noticed", f"{outcome.failed}: {outcome.why} ({took})"
    ran = f"{len(outcome.passed)} of {len(reaching)} tests that reach it passed ({took})"
    return "survived", ran + (", time was over" if outcome.at_the_limit else "")


if __name__ == "__main__":
    sys.exit(main())
