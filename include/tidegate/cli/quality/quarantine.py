"""`tidegate quarantine`: rows that gates have set aside: look at them, let them go on, or give them up."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tidegate import seams
from tidegate.checkpoint.quarantine_requests import ask, taken_up
from tidegate.cli.inspect.read import plain, shown
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.targets import Target, find
from tidegate.errors import Invalid, Rejected
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import SetAside, open_quarantine
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Request

__all__ = ["add_parser", "gates_of", "open_aside", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "quarantine",
        help="rows that gates have set aside: list, show, release, discard",
        description="Rows that gates have set aside. They wait until somebody releases or discards them.",
        epilog="examples:\n  tidegate quarantine list orders\n"
        "  tidegate quarantine show orders checked --rule positive\n"
        "  tidegate quarantine release orders checked --checkpoint 7 --set amount=0\n"
        "  tidegate quarantine discard orders checked --id 3f2a --yes\n"
        "  tidegate quarantine withdraw orders checked 2",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = below.add_parser("list", help="how many rows wait, by gate, and what was asked for")
    listing.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    for verb, help in (
        ("show", "the rows, with the rules that they broke and what has become of them"),
        ("release", "let rows go on from where the gate stands, in the next checkpoint, once"),
        ("discard", "give rows up; they stay in the table, marked"),
    ):
        _add_choice(below.add_parser(verb, help=help), verb)
    withdraw = below.add_parser("withdraw", help="take back a request that no checkpoint has taken up")
    withdraw.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    withdraw.add_argument("gate", metavar="GATE", help="the gate's name")
    withdraw.add_argument("number", type=checkpoint_id, metavar="REQUEST", help="the request's number")


def _add_choice(parser: Any, verb: str) -> None:
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("gate", metavar="GATE", help="the gate's name")
    parser.add_argument("--id", action="append", default=[], metavar="ID", help="this row; its first characters do")
    parser.add_argument(
        "--checkpoint", action="append", type=checkpoint_id, default=[], metavar="N", help="set aside by checkpoint N"
    )
    parser.add_argument("--rule", action="append", default=[], metavar="RULE", help="rows that broke this rule")
    if verb == "show":
        parser.add_argument("--settled", action="store_true", help="also rows that were released or discarded")
        parser.add_argument("--limit", type=checkpoint_id, default=20, metavar="K", help="at most K rows (20)")
        return
    parser.add_argument("--all", action="store_true", help="all rows that wait now")
    parser.add_argument("--note", default="", metavar="TEXT", help="why, for whoever looks at it later")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    if verb == "release":
        parser.add_argument(
            "--set", action="append", type=_correction, default=[], metavar="COLUMN=VALUE", help="correct a column"
        )
        parser.add_argument("--null", action="append", default=[], metavar="COLUMN", help="make a column null")


def _correction(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form COLUMN=VALUE")
    return column, value


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    if args.verb == "list":
        return _list(target, out)
    if args.verb == "withdraw":
        return _withdraw(target, args, out)
    aside = open_aside(target, args.gate)
    if args.verb == "show":
        return _show(target, aside, args, out)
    return _ask(target, aside, args, out)


# -- looking -------------------------------------------------------------------------------------------


def _list(target: Target, out: Output) -> int:
    found = {gate: _gate(target, open_aside(target, gate)) for gate in gates_of(target)}
    out.document({"pipeline": target.name, "gates": found})
    out.table(
        ["gate", "waiting", "released", "discarded", "rules broken by rows that wait"],
        [
            [gate, told["waiting"], told["released"], told["discarded"], _counted(told["rules"])]
            for gate, told in found.items()
        ],
        right=["waiting", "released", "discarded"],
    )
    for gate, told in found.items():
        for each in told["requests"]:
            out.line(
                f"Gate {gate}: request {each['number']} to {each['action']} {each['rows']:,} rows, by {each['by']},"
            )
            back = target.command("quarantine withdraw", gate, each["number"])
            out.line(f"  waits for the next checkpoint; to take it back:  {back}", "dim")
    if not found:
        out.line("No gate of this pipeline has set rows aside.")
    return 0


def _gate(target: Target, aside: SetAside) -> dict[str, Any]:
    """One gate's quarantine in numbers."""
    told = aside.counts(budget=None)
    requests = [
        {"number": each.number, "action": each.action, "rows": aside.count(each), "by": each.by}
        for each in _pending(target, aside.gate)
    ]
    return {
        "waiting": told.waiting,
        "released": told.settled["released"],
        "discarded": told.settled["discarded"],
        "rules": dict(told.rules),
        "requests": requests,
        "table": aside.url,
    }


def _pending(target: Target, gate: str) -> list[Request]:
    """Requests that no plan has taken up, but those that were withdrawn."""
    new = target.ledger.requests(gate, after=taken_up(target.ledger.view(), gate))
    withdrawn = {each.withdraws for each in new}
    return [each for each in new if each.action != "withdraw" and each.number not in withdrawn]


def _show(target: Target, aside: SetAside, args: argparse.Namespace, out: Output) -> int:
    request = _request(target, aside, args, "show")
    total = aside.count(request, settled=args.settled)
    told = aside.first(request, args.limit, settled=args.settled)
    columns = aside.columns
    out.document(
        {
            "pipeline": target.name,
            "gate": aside.gate,
            "total": total,
            "rows": [{name: plain(value) for name, value in row.items()} for row in told],
        }
    )
    out.table(
        ["id", "checkpoint", "rules", *columns, "state"],
        [
            [
                row[q.ID],
                row[q.CHECKPOINT],
                ", ".join(row[q.RULES] or ()),
                *(shown(row[c]) for c in columns),
                _state(row),
            ]
            for row in told
        ],
        right=["checkpoint"],
    )
    out.line(f"{len(told):,} of {total:,} rows in {aside.url}", "dim")
    return 0


def _state(row: dict[str, Any]) -> str:
    return f"{row[q.SETTLED]} in checkpoint {row[q.SETTLED_IN]} by {row[q.SETTLED_BY]}" if row[q.SETTLED] else "waits"


def _counted(rules: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(rules.items(), key=lambda pair: -pair[1])[:5])


# -- asking --------------------------------------------------------------------------------------------


def _ask(target: Target, aside: SetAside, args: argparse.Namespace, out: Output) -> int:
    _refuse_intervals(target)
    if not (args.all or args.id or args.checkpoint or args.rule):
        raise Invalid(
            f"which rows to {args.verb} is not said",
            expected="--id, --checkpoint or --rule, as often as needed, or --all",
            help=f"`tidegate quarantine show {target.argument} {aside.gate}` shows them",
        )
    request = _request(target, aside, args, args.verb)
    count = aside.count(request)
    if not count:
        raise Rejected(
            f"no row that waits in quarantine of gate {aside.gate!r} is meant",
            help=f"`tidegate quarantine show {target.argument} {aside.gate} --settled` shows all",
            reason="NO_ROWS",
        )
    confirm(f"{args.verb} {count:,} rows of gate {aside.gate}?", out, yes=args.yes or args.verb == "release")
    made = ask(target.ledger, request)
    out.document(
        {"pipeline": target.name, "gate": aside.gate, "request": made.number, "action": made.action, "rows": count}
    )
    does = "go on behind the gate" if args.verb == "release" else "are given up"
    out.line(f"Request {made.number}: {count:,} rows {does} with the next checkpoint.")
    return 0


def _request(target: Target, aside: SetAside, args: argparse.Namespace, verb: str) -> Request:
    """What the arguments say, as a request that has no number yet."""
    correct = {**dict(getattr(args, "set", [])), **dict.fromkeys(getattr(args, "null", []))}
    aside.refuse_corrections(correct)
    return Request(
        **stamp(seams.new_id()),
        number=1,
        gate=aside.gate,
        action="discard" if verb == "discard" else "release",
        seen=aside.last_checkpoint,
        ids=aside.whole_ids(args.id),
        checkpoints=args.checkpoint,
        rules=_known(args.rule, aside),
        correct=correct,
        by=who(),
        note=getattr(args, "note", ""),
    )


def _known(rules: Sequence[str], aside: SetAside) -> list[str]:
    there = aside.broken() if rules else set()
    for rule in rules:
        if rule not in there:
            raise Invalid(
                f"no row in quarantine of gate {aside.gate!r} broke a rule {rule!r}",
                expected=" or ".join(sorted(there)) or "rows in quarantine",
                help="`tidegate quarantine list` shows which rules were broken",
                reason="NO_SUCH_RULE",
            )
    return list(rules)


def _refuse_intervals(target: Target) -> None:
    view = target.ledger.view()
    if view.entries and view.entries[-1].plan.by_interval:
        raise Invalid(
            f"pipeline {target.name!r} reads by data interval: what is made again replaces the interval's rows",
            expected="a pipeline that reads whatever is new",
            help="correct the input or the rules, and make the interval again: clear its run",
            reason="BY_INTERVAL",
        )


def _withdraw(target: Target, args: argparse.Namespace, out: Output) -> int:
    request = Request(
        **stamp(seams.new_id()), number=1, gate=args.gate, action="withdraw", withdraws=args.number, by=who()
    )
    ask(target.ledger, request)
    out.document({"pipeline": target.name, "gate": args.gate, "withdrawn": args.number})
    out.line(f"Request {args.number} of gate {args.gate} is taken back.")
    return 0


def gates_of(target: Target) -> list[str]:
    """The gates that have set rows aside."""
    return [name for name in target.ledger.store.names("quarantine") if _open(target, name) is not None]


def open_aside(target: Target, gate: str) -> SetAside:
    """A gate's quarantine; Rejected if it has none."""
    aside = _open(target, gate)
    if aside is None:
        raise Rejected(
            f"gate {gate!r} of pipeline {target.name!r} has set no rows aside",
            expected=" or ".join(gates_of(target))
            or "a gate whose policy is quarantine, and rows that break its rules",
            help=f"`tidegate quarantine list {target.argument}` shows all",
            reason="NO_QUARANTINE",
        )
    return aside


def _open(target: Target, gate: str) -> SetAside | None:
    if "/" in gate or gate.startswith("."):
        return None
    return open_quarantine(target.ledger.home, gate, target.settings.storage_options)
