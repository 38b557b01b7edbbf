"""`tidegate docs gates`: the gates' verdicts as validation results of Great Expectations, and Data Docs of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.delta import Location
from tidegate.errors import Invalid, Rejected
from tidegate.gates.expectations.data_docs import GATE_DOCS, PAGE, SITE
from tidegate.gates.expectations.data_docs.folders import docs_folder
from tidegate.gates.expectations.data_docs.site import build_site, write_results
from tidegate.gates.expectations.validation import Validation, validations_of

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "docs",
        help="the gates' verdicts as Great Expectations' validation results and Data Docs",
        description="Documents for people who know other tools.",
        epilog="example:\n  tidegate docs gates orders",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    gates = verbs.add_parser(
        "gates",
        help="validation results and Data Docs of every retained checkpoint",
        description="Write what the gates of expectations found in each retained checkpoint, whatever became of it, as "
        "Great Expectations' own validation results, with exact counts, and build its Data Docs from them. The folder "
        "is laid out like a file context, and may be one: `great_expectations.get_context(context_root_dir=FOLDER)` "
        "reads it. Results that were written before stay, so it also shows checkpoints whose records are retired by "
        "now. Nothing is loaded from other sites, neither now nor by the pages.",
        epilog="examples:\n  tidegate docs gates orders\n  tidegate docs gates orders --into gx\n"
        "  tidegate docs gates orders --into /tmp/orders --values --results-only",
    )
    gates.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    gates.add_argument(
        "--into", metavar="FOLDER", help="where to write; by default beside the ledger, where the pages link to it"
    )
    gates.add_argument(
        "--values",
        action="store_true",
        help="with the samples of bad values and with observed values, except of private columns; needs --into",
    )
    gates.add_argument(
        "--results-only", action="store_true", help="no Data Docs: fast, and without importing Great Expectations"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    if args.into is not None:
        return _write(target, Path(args.into), args.into, args, out)
    if args.values:
        raise Invalid(
            "--values needs --into",
            expected="a folder that only people may read who may read rows",
            help="without --values, everybody who may see the pipeline's pages may see these",
            reason="BAD_FOLDER",
        )
    ledger = Location(target.ledger.home, target.settings.storage_options)
    with docs_folder(ledger) as folder:
        return _write(target, folder, ledger.full(GATE_DOCS), args, out)


def _write(target: Target, folder: Path, place: str, args: argparse.Namespace, out: Output) -> int:
    """Write into a folder. place: where its content will be."""
    validations = list(_validations(target, values=args.values))
    changed = write_results(folder, validations)
    document: dict[str, Any] = {"pipeline": target.name, "folder": place, "written": len(changed)}
    if args.results_only:
        out.document(document)
        out.line(f"{len(changed)} results and suites written to {place}")
        return 0
    modules = sorted({module for validation in validations for module in validation.modules})
    sys.path.insert(0, str(Path.cwd()))  # as for a pipeline's own module
    site = build_site(folder, target.name, changed, modules)
    index = f"{place}/{SITE}/index{PAGE}"
    out.document({**document, "index": index, "pages": site.pages, "missing": site.missing})
    out.line(f"{len(changed)} results and suites written, Data Docs of {site.pages} pages: {index}")
    for page in site.missing:
        out.problem(f"Great Expectations could not draw {page}")
    return 1 if site.missing else 0


def _validations(target: Target, *, values: bool) -> Iterator[Validation]:
    """Yield the verdicts of all retained checkpoints. Raise Rejected if there are none."""
    has_any = False
    for id in target.ledger.ids():
        entry = target.ledger.entry(id)
        for validation in validations_of(target.ledger, entry, values=values) if entry is not None else ():
            has_any = True
            yield validation
    if not has_any:
        raise Rejected(
            f"no gate of expectations has judged a checkpoint of {target.name} that is retained",
            expected="a pipeline with a gate Expectations(…)",
            help="`tidegate list` shows its checkpoints",
            reason="NO_SUCH_VERDICT",
        )
