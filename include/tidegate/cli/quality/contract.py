"""`tidegate contract`: check a data contract, and tell what changes between two versions of one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tidegate.cli.output import Output
from tidegate.config import load_settings
from tidegate.gates.contracts.changes import changes_between
from tidegate.gates.contracts.document import ContractDocument, contract_path, read_contract, read_contract_text
from tidegate.gates.contracts.origin import ReadContract, read_for_table

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "contract",
        help="data contracts: check, diff",
        description="Data contracts: files of the Open Data Contract Standard 3.",
        epilog="examples:\n  tidegate contract check contracts/orders.odcs.yaml\n"
        "  tidegate contract diff contracts/orders.odcs.yaml new/orders.odcs.yaml",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="read a contract as a gate does, strictly",
        description="Read a contract as a gate does: what is unknown, and what cannot be judged, is reported with file "
        "and line. Then each rule is listed, with how it is judged.",
    )
    check.add_argument("contract", metavar="FILE", help="the contract, below the project's folder")
    check.add_argument("--schema", metavar="NAME", help="one of its schema objects (all)")
    diff = verbs.add_parser(
        "diff",
        help="what changes from one contract to another; exit code 1 if something breaks",
        description="List what changes from one version of a contract to another, and whether it breaks those who rely "
        "on it. Breaking are, for example, a property that is gone, another type, and another value of `required`. The "
        "exit code is 1 if anything breaks, otherwise 0.",
    )
    diff.add_argument("before", metavar="BEFORE", help="the contract as it is")
    diff.add_argument("after", metavar="AFTER", help="the contract as it will be")


def run(args: argparse.Namespace, out: Output) -> int:
    return {"check": _check, "diff": _diff}[args.verb](args, out)


def _read(file: str, args: argparse.Namespace) -> ContractDocument:
    place = load_settings(args.settings).place()
    # As for any command, a path is one of the working directory. Gates find contracts in the project's folder.
    path = Path(file) if Path(file).is_file() else contract_path(place, file)
    return read_contract(read_contract_text(path), file)


def _check(args: argparse.Namespace, out: Output) -> int:
    place = load_settings(args.settings).place()
    path = Path(args.contract) if Path(args.contract).is_file() else contract_path(place, args.contract)
    text = read_contract_text(path)
    document = read_contract(text, args.contract)
    names = [args.schema] if args.schema else [schema.name for schema in document.schemas]
    tables = [read_for_table(text, args.contract, name) for name in names]
    for table in tables:
        table.suite("all")
    out.document({"contract": args.contract, "id": document.id, "version": document.version} | _documents(tables))
    for table in tables:
        out.table(["rule", "judged", "severity", "line"], _rows(table), right=["line"], title=table.schema.name)
        for name, why in table.rules.told_only:
            out.line(f"Not judged: {name}: {why}", "dim")
    out.line(f"{args.contract}: version {document.version}, {_count(tables)}, all understood")
    return 0


def _documents(tables: list[ReadContract]) -> dict[str, Any]:
    return {
        "schemas": {
            table.schema.name: {
                "rules": [
                    {"rule": rule.name, "severity": rule.severity, "line": rule.line, "all_rows": rule.about_all_rows}
                    for rule in table.rules.rules
                ],
                "not_judged": [{"name": name, "why": why} for name, why in table.rules.told_only],
            }
            for table in tables
        }
    }


def _rows(table: ReadContract) -> list[list[object]]:
    return [
        [rule.name, "over the table" if rule.about_all_rows else "row by row", rule.severity, rule.line]
        for rule in table.rules.rules
    ]


def _count(tables: list[ReadContract]) -> str:
    number = sum(len(table.rules.rules) for table in tables)
    return "1 rule" if number == 1 else f"{number} rules"


def _diff(args: argparse.Namespace, out: Output) -> int:
    before, after = _read(args.before, args), _read(args.after, args)
    changes = changes_between(before, after)
    breaking = sum(change.effect == "breaking" for change in changes)
    described = [{"path": each.path, "kind": each.kind, "effect": each.effect} for each in changes]
    note = _note(before, after) if breaking else ""
    out.document({"breaking": bool(breaking), "changes": described, "note": note})
    out.table(["effect", "change"], [[change.effect, change.text] for change in changes])
    if breaking:
        out.line(f"Breaking: {breaking} of {len(changes)} changes.", "bold")
        if note:
            out.line(note)
        return NO
    out.line(f"Nothing breaks: {len(changes)} changes." if changes else "They promise the same.", "bold")
    return 0


def _note(before: ContractDocument, after: ContractDocument) -> str:
    """Return what the versions should be, if they do not say that something breaks."""
    old, new = before.version.partition(".")[0], after.version.partition(".")[0]
    if old != new:
        return ""
    return f"Version {after.version} after {before.version} promises that nothing breaks: raise the first number."
