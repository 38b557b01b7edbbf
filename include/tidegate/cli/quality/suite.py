"""`tidegate suite`: check suites of expectations, start one, or propose one from a sample."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidegate.cli.output import Output
from tidegate.config import load_settings
from tidegate.errors import Invalid, Rejected
from tidegate.gates.expectations.catalogue import CATALOGUE
from tidegate.gates.expectations.origin import FOLDER, FileSuite, SuiteOrigin, origin_of, suites_of_context
from tidegate.gates.expectations.profile import profile, read_sample
from tidegate.gates.expectations.suite import Suite, read_suite
from tidegate.records.names import check_name
from tidegate.records.place import Place

__all__ = ["add_parser", "run"]

STARTER = """# Expectations for {name}. `tidegate suite list` shows what is available.
# Check it:  tidegate suite check {name}
name: {name}
expectations:
  - type: expect_table_row_count_to_be_between
    kwargs: {{min_value: 1}}
    severity: warning      # or critical (the default), or info
  # - type: expect_column_values_to_not_be_null
  #   kwargs: {{column: id}}
  #   id: known            # what verdicts and quarantine call the rule
  # - type: expect_column_values_to_be_unique
  #   kwargs: {{column: id}}
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "suite",
        help="suites of expectations: check, list, init, profile",
        description=f"Suites of expectations, in {FOLDER}/NAME.yaml.",
        epilog="examples:\n  tidegate suite check\n  tidegate suite check orders --sample landing/orders.parquet\n"
        "  tidegate suite check --context gx\n"
        "  tidegate suite init orders\n  tidegate suite profile orders --sample tables/orders --write",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="read suites as a gate does, strictly",
        description="Read suites as a gate does: everything unknown is reported with file and line.",
    )
    check.add_argument("suites", nargs="*", metavar="SUITE", help="names, or paths that end in .yaml (all suites)")
    check.add_argument(
        "--context", metavar="FOLDER", help="suites of this file context of Great Expectations, such as gx"
    )
    check.add_argument(
        "--modules", metavar="MODULE", nargs="+", default=[], help="modules that define expectations of your own"
    )
    check.add_argument("--sample", metavar="PATH", help="also check that the columns exist")
    check.add_argument("--quick", action="store_true", help="skip the check by Great Expectations, which takes seconds")
    verbs.add_parser(
        "list",
        help="show every expectation, and how it is judged",
        description="Show every expectation, how it is judged, and whether it identifies the rows that break it, so "
        "that they can be quarantined.",
        epilog="example:\n  tidegate suite list",
    )
    init = verbs.add_parser("init", help="start a suite", description="Write a suite to start from.")
    init.add_argument("name", metavar="NAME", help="the suite's name")
    propose = verbs.add_parser(
        "profile",
        help="propose a suite from a sample",
        description="Propose a suite that the sample satisfies: a Delta table, or Parquet, CSV or JSON lines. Review "
        "it before you use it: a sample shows current rows, not the rules that they must follow.",
    )
    propose.add_argument("name", metavar="NAME", help="the suite's name")
    propose.add_argument("--sample", required=True, metavar="PATH", help="a file, a folder of files or a Delta table")
    propose.add_argument("--rows", type=int, default=100_000, metavar="N", help="the number of rows to read (100000)")
    propose.add_argument("--write", action="store_true", help="write the file instead of printing it")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.verb == "list":
        return _list(out)
    place = load_settings(args.settings).place()
    if args.verb == "check":
        return _check(place, args, out)
    check_name("suite", args.name)
    if args.verb == "init":
        return _write(place, args.name, STARTER.format(name=args.name), out)
    text = profile(args.name, read_sample(place, args.sample, args.rows))
    if args.write:
        return _write(place, args.name, text, out)
    out.document({"suite": args.name, "yaml": text})
    out.line(text)
    return 0


def _list(out: Output) -> int:
    described = []
    for name, kind in CATALOGUE.items():
        described.append({"type": name, "judged": kind.how.value, "rows_known": kind.identifies_rows, "why": kind.why})
    out.document({"expectations": described})
    rows = []
    for each in described:
        rows.append([each["type"], each["judged"], "yes" if each["rows_known"] else "no", each["why"]])
    out.table(["expectation", "how it is judged", "bad rows known", "why"], rows)
    return 0


def _check(place: Place, args: argparse.Namespace, out: Output) -> int:
    if args.modules:
        sys.path.insert(0, str(Path.cwd()))  # where those of a project are
    names = args.suites or _names(place, args.context)
    columns = None
    if args.sample:
        columns = read_sample(place, args.sample, 1).column_names
    results: dict[str, Any] = {}
    wrong: list[str] = []
    for name in names:
        try:
            suite = _check_suite(origin_of(name, args.context, args.modules), place, columns, quick=args.quick)
            results[name] = {"rules": len(suite.rules), "problems": []}
        except Invalid as error:
            results[name] = {"rules": 0, "problems": error.what.splitlines()}
            wrong += error.what.splitlines()
    if wrong:
        raise Invalid(
            "\n".join(wrong),
            expected="suites in Great Expectations' form, without unknown words",
            help="`tidegate suite list` shows what is available",
            reason="BAD_SUITE",
        )
    out.document({"suites": results})
    for name, result in results.items():
        out.line(f"{name}: {result['rules']} expectations, all understood")
    return 0


def _names(place: Place, context: str | None) -> list[str]:
    """Return the names of all suites of the project, or of a context."""
    folder = place.of_project(context or FOLDER)
    if context:
        names = suites_of_context(place, context)
    else:
        names = sorted(path.stem for path in Path(folder).glob("*.yaml"))
    if not names:
        if context:
            help = "save one: context.suites.add(suite)"
        else:
            help = "`tidegate suite init NAME` starts one"
        raise Rejected(f"there is no suite in {folder}", help=help, reason="NO_SUITE")
    return names


def _check_suite(origin: SuiteOrigin, place: Place, columns: list[str] | None, *, quick: bool) -> Suite:
    suite = origin.load(place)
    if columns is not None:
        suite.check_columns(columns)
    if not quick:
        from tidegate.gates.expectations.library import expectations_of

        expectations_of(suite)
    return suite


def _write(place: Place, name: str, text: str, out: Output) -> int:
    """Write the file, unless it exists already."""
    path = FileSuite(name).path(place)
    read_suite(text, str(path), name)  # never write a suite that cannot be read
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Rejected(
            f"{path} already exists",
            expected="a new name",
            help="choose another name, or remove the file",
            reason="THERE",
        ) from None
    out.document({"suite": name, "path": str(path)})
    out.line(f"Written: {path}")
    out.line(f'Use it:  stream.gate(Expectations("{name}"))', "dim")
    return 0
