"""`tidegate quarantine`: list, show, release and discard the rows that gates have quarantined."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal

from tidegate import seams
from tidegate.backfill.in_place import InPlaceRelease, in_place, refuse_without_place
from tidegate.checkpoint.quarantine_requests import (
    ask,
    expected_effect,
    pending_requests,
    requests_in_place,
)
from tidegate.cli.inspect.read import format_rows
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.quality.corrections import (
    correction,
    preview_request,
    refuse_failing_sql,
    refuse_without_rules,
)
from tidegate.cli.targets import Target, open_target
from tidegate.delta.as_python import json_value
from tidegate.errors import Invalid, Rejected
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.gates.quarantine.returning import is_late
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Json, Request

__all__ = ["add_parser", "quarantined_gates", "require_quarantine", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quarantine",
        help="rows in quarantine: list, show, release, discard",
        description="Rows that gates have quarantined. They wait until they are released or discarded.",
        epilog="examples:\n  tidegate quarantine list orders\n"
        "  tidegate quarantine show orders checked --rule positive\n"
        "  tidegate quarantine release orders checked --checkpoint 7 --set amount=0\n"
        '  tidegate quarantine release orders checked --rule positive --set "amount = abs(amount)" --dry-run\n'
        "  tidegate quarantine rejudge orders checked --dry-run\n"
        "  tidegate quarantine discard orders checked --id 3f2a --yes\n"
        "  tidegate quarantine withdraw orders checked 2",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="the number of waiting rows, by gate, and the open requests")
    listing.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    for verb, help in (
        ("show", "the rows, with the rules that they broke and their state"),
        ("release", "let rows continue after the gate with the next checkpoint, once"),
        ("rejudge", "judge rows again by today's suite: those that pass continue after the gate, once"),
        ("discard", "discard rows; they stay in the table, marked"),
    ):
        _add_choice(verbs.add_parser(verb, help=help), verb)
    withdraw = verbs.add_parser("withdraw", help="withdraw a request that no checkpoint has processed")
    withdraw.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    withdraw.add_argument("gate", metavar="GATE", help="the gate's name")
    withdraw.add_argument("number", type=checkpoint_id, metavar="REQUEST", help="the request's number")


def _add_choice(parser: Any, verb: str) -> None:
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("gate", metavar="GATE", help="the gate's name")
    parser.add_argument("--id", action="append", default=[], metavar="ID", help="this row; a unique prefix is enough")
    parser.add_argument(
        "--checkpoint",
        action="append",
        type=checkpoint_id,
        default=[],
        metavar="N",
        help="rows quarantined by checkpoint N",
    )
    parser.add_argument("--rule", action="append", default=[], metavar="RULE", help="rows that broke this rule")
    if verb == "show":
        parser.add_argument("--settled", action="store_true", help="also rows that were released or discarded")
        parser.add_argument("--limit", type=checkpoint_id, default=20, metavar="K", help="at most K rows (20)")
        return
    every = "all rows that wait now" + ("; the default" if verb == "rejudge" else "")
    parser.add_argument("--all", action="store_true", help=every)
    parser.add_argument("--note", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    if verb == "release":
        parser.add_argument(
            "--set",
            action="append",
            type=correction,
            default=[],
            metavar="COLUMN=VALUE",
            help='correct a column. COLUMN=VALUE is a constant; "COLUMN = SQL", with a space on both sides of the '
            "equals sign, is a Spark SQL expression over the columns of each row as it was quarantined",
        )
        parser.add_argument("--null", action="append", default=[], metavar="COLUMN", help="make a column null")
        parser.add_argument(
            "--in-place",
            action="store_true",
            help="release rows in place, where they were held back, by a backfill with --cuts recorded; for rows that "
            "would be late now",
        )
    if verb in ("release", "rejudge"):
        parser.add_argument("--dry-run", action="store_true", help="only show what would happen to the rows")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    if args.verb == "list":
        return _list(target, out)
    if args.verb == "withdraw":
        return _withdraw(target, args, out)
    quarantine = require_quarantine(target, args.gate)
    if args.verb == "show":
        return _show(target, quarantine, args, out)
    return _ask(target, quarantine, args, out)


# -- list and show -------------------------------------------------------------------------------------


def _list(target: Target, out: Output) -> int:
    gates = {}
    for gate in quarantined_gates(target):
        gates[gate] = _summarize(target, require_quarantine(target, gate))
    out.document({"pipeline": target.name, "gates": gates})
    out.table(
        ["gate", "waiting", "released", "discarded", "rules broken by waiting rows"],
        [
            [gate, summary["waiting"], summary["released"], summary["discarded"], _rules_text(summary["rules"])]
            for gate, summary in gates.items()
        ],
        right=["waiting", "released", "discarded"],
    )
    for gate, summary in gates.items():
        for request in summary["requests"]:
            number, action, rows, by = request["number"], request["action"], request["rows"], request["requested_by"]
            out.line(f"Gate {gate}: request {number} to {action} {rows:,} rows, by {by},")
            withdraw = target.command("quarantine withdraw", gate, number)
            if request["in_place"]:
                waits_for = "a backfill with --cuts recorded"
            else:
                waits_for = "the next checkpoint"
            out.line(f"  waits for {waits_for}; to withdraw it:  {withdraw}", "dim")
    if not gates:
        out.line("No gate of this pipeline has quarantined rows.")
    return 0


def _summarize(target: Target, quarantine: QuarantinedRows) -> dict[str, Any]:
    """Return one gate's quarantine in numbers."""
    counts = quarantine.counts(budget=None)
    requests = []
    for request in _pending(target, quarantine.gate):
        count = quarantine.count(request)
        if not count and request.in_place:
            continue
        requests.append(
            {
                "number": request.number,
                "action": request.action,
                "rows": count,
                "requested_by": request.by,
                "in_place": request.in_place,
            }
        )
    return {
        "waiting": counts.waiting,
        "released": counts.settled["released"],
        "discarded": counts.settled["discarded"],
        "rules": dict(counts.rules),
        "requests": requests,
        "table": quarantine.url,
    }


def _pending(target: Target, gate: str) -> list[Request]:
    """Return the requests that no plan has processed, and those for backfills, without withdrawn ones."""
    pending = pending_requests(target.ledger, target.ledger.view(), gate)
    return sorted([*pending, *requests_in_place(target.ledger, gate)], key=lambda request: request.number)


def _show(target: Target, quarantine: QuarantinedRows, args: argparse.Namespace, out: Output) -> int:
    request = _request(target, quarantine, args, "show")
    total = quarantine.count(request, settled=args.settled)
    rows = quarantine.first(request, args.limit, settled=args.settled)
    requests = _settling(target, quarantine.gate, rows)
    columns = quarantine.columns
    out.document(
        {
            "pipeline": target.name,
            "gate": quarantine.gate,
            "total": total,
            "rows": json_value(rows),
            "requests": [_describe(each) for each in requests.values()],
        }
    )
    cells = []
    for row, values in zip(rows, format_rows(rows, columns), strict=True):
        cells.append([row[q.ID], row[q.CHECKPOINT], ", ".join(row[q.RULES] or ()), *values, _state(row)])
    out.table(["id", "checkpoint", "rules", *columns, "state"], cells, right=["checkpoint"])
    for request in requests.values():
        if request.corrects:
            out.line(
                f"Request {request.number} by {request.by}, at {request.created}, set {', '.join(request.corrections)}."
            )
    out.line(f"{len(rows):,} of {total:,} rows in {quarantine.url}", "dim")
    stays = next((row[q.ID] for row in rows if is_late(row.get(q.STAYS)) and not row[q.SETTLED]), None)
    if stays is not None:
        command = target.command("quarantine release", quarantine.gate, "--id", stays, "--in-place")
        out.line(f"To release a late row in place, where it was held back:  {command}", "dim")
    return 0


def _settling(target: Target, gate: str, rows: Sequence[dict[str, Any]]) -> dict[int, Request]:
    """Return the requests that have settled these rows, by number."""
    numbers = {row[q.SETTLED_REQUEST] for row in rows if row.get(q.SETTLED_REQUEST)}
    if not numbers:
        return {}
    return {request.number: request for request in target.ledger.requests(gate) if request.number in numbers}


def _describe(request: Request) -> Json:
    return {
        "number": request.number,
        "action": request.action,
        "requested_by": request.by,
        "requested_at": request.created,
        "correct": request.correct,
        "correct_sql": request.correct_sql,
        "note": request.note,
    }


def _state(row: dict[str, Any]) -> str:
    if row[q.SETTLED]:
        if row.get(q.SETTLED_REQUEST):
            request = f", request {row[q.SETTLED_REQUEST]}"
        else:
            request = ""
        corrected = f", as {row[q.CORRECTED]}" if row.get(q.CORRECTED) else ""
        return f"{row[q.SETTLED]} in checkpoint {row[q.SETTLED_IN]} by {row[q.SETTLED_BY]}{request}{corrected}"
    why = f"; {row[q.WHY]}" if row.get(q.WHY) else ""
    if row.get(q.STAYS):
        return f"waits; not released: {row[q.STAYS]}{why}"
    return f"waits{why}"


def _rules_text(rules: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(rules.items(), key=lambda pair: -pair[1])[:5])


# -- requests ------------------------------------------------------------------------------------------


def _ask(target: Target, quarantine: QuarantinedRows, args: argparse.Namespace, out: Output) -> int:
    _refuse_intervals(target)
    if args.verb == "rejudge":
        refuse_without_rules(target, quarantine.gate)
    elif not (args.all or args.id or args.checkpoint or args.rule):
        raise Invalid(
            f"no rows to {args.verb} were chosen",
            expected="--id, --checkpoint or --rule, as often as needed, or --all",
            help=f"`tidegate quarantine show {target.argument} {quarantine.gate}` shows them",
        )
    request = _request(target, quarantine, args, args.verb)
    count = quarantine.count(request)
    if not count:
        raise Rejected(
            f"no matching row waits in quarantine of gate {quarantine.gate!r}",
            help=f"`tidegate quarantine show {target.argument} {quarantine.gate} --settled` shows all",
            reason="NO_ROWS",
        )
    document = {"pipeline": target.name, "gate": quarantine.gate, "action": request.action, "rows": count}
    if request.in_place:
        return _ask_in_place(target, quarantine, request, args, out)
    dry_run = getattr(args, "dry_run", False)
    expected = None
    if request.correct_sql or request.action == "rejudge" or (dry_run and request.corrects):
        outlook = preview_request(target, quarantine, request)
        expected = outlook.forecast
        document |= {"preview": outlook.document()}
        outlook.show(request, out)
        if not dry_run:
            refuse_failing_sql(request, outlook)
    elif args.verb == "release":
        expected = expected_effect(target.ledger, quarantine, request)
    document |= {"expected": expected.document()} if expected is not None else {}
    if not dry_run:
        confirm(f"{args.verb} {count:,} rows of gate {quarantine.gate}?", out, yes=args.yes or args.verb != "discard")
        request = ask(target.ledger, request)
        document |= {"request": request.number}
    in_place_release = None
    if request.action == "release" and expected is not None:
        may_be_late = expected.found_out_later or any(map(is_late, expected.stays))
        if may_be_late:
            in_place_release = in_place(target.ledger, quarantine, request)
    if in_place_release is not None and in_place_release.rows:
        document |= {"in_place": in_place_release.document()}
    out.document(document)
    effect = "are discarded"
    if expected is not None:
        effect = "continue after the gate"
        for line in expected.lines():
            out.line(f"- {line}")
        count = expected.counts
    if in_place_release is not None and in_place_release.rows:
        command = target.command("quarantine release", quarantine.gate, *_selection(args), "--in-place")
        out.line(f"  Rows that stay can be released in place, where they were held back:  {command}", "dim")
        out.line(f"  and then:  {_backfill_command(target, in_place_release)}", "dim")
    elif in_place_release is not None:
        out.line("  Rows that stay cannot be released in place: their checkpoints are not retained.", "dim")
    if "request" not in document:
        number = "Dry run"
    else:
        number = f"Request {request.number}"
    out.line(f"{number}: {count:,} rows {effect} with the next checkpoint.")
    return 0


def _ask_in_place(
    target: Target, quarantine: QuarantinedRows, request: Request, args: argparse.Namespace, out: Output
) -> int:
    """Request to release rows in place, and print the command of the backfill that does it."""
    in_place_release = in_place(target.ledger, quarantine, request)
    refuse_without_place(quarantine, in_place_release)
    if request.correct_sql:
        outlook = preview_request(target, quarantine, request)
        outlook.show(request, out)
        refuse_failing_sql(request, outlook)
    document: Json = {"pipeline": target.name, "gate": quarantine.gate, "action": request.action}
    document |= {"in_place": in_place_release.document()}
    number = "Would be asked"
    if not args.dry_run:
        request = ask(target.ledger, request)
        document |= {"request": request.number}
        number = f"Request {request.number}"
    out.document(document)
    out.line(f"{number}: {in_place_release.rows:,} rows are released in place, as if they had passed the gate.")
    if in_place_release.unreachable:
        out.line(f"- {in_place_release.unreachable:,} rows stay: their checkpoints are not retained", "yellow")
    for line in target.ledger.backfills():
        out.line(f"- not by backfill {line.name}, which had already begun: swap it in or discard it first", "yellow")
    out.line(f"This backfill does it, once swapped in:  {_backfill_command(target, in_place_release)}", "dim")
    return 0


def _backfill_command(target: Target, in_place_release: InPlaceRelease) -> str:
    return target.command_on_code("backfill", *in_place_release.words())


def _selection(args: argparse.Namespace) -> list[str]:
    """Return the arguments that select the rows, and correct them."""
    chosen = []
    for name in ("id", "checkpoint", "rule"):
        for value in getattr(args, name):
            chosen.append((f"--{name}", str(value)))
    for each in args.set:
        chosen.append(("--set", each.word))
    for column in args.null:
        chosen.append(("--null", column))
    return [*(["--all"] if args.all else []), *(word for pair in chosen for word in pair)]


Verb = Literal["show", "release", "rejudge", "discard"]


def _request(target: Target, quarantine: QuarantinedRows, args: argparse.Namespace, verb: Verb) -> Request:
    """Turn the arguments into a request that has no number yet."""
    correct, correct_sql = _corrections(args)
    quarantine.refuse_corrections(correct)
    quarantine.refuse_unknown_columns(correct_sql)
    return Request(
        **stamp(seams.new_id()),
        number=1,
        gate=quarantine.gate,
        action=verb if verb != "show" else "release",  # which selects rows alike
        seen=quarantine.last_checkpoint,
        ids=quarantine.whole_ids(args.id),
        checkpoints=args.checkpoint,
        rules=_check_rules(args.rule, quarantine),
        correct=correct,
        correct_sql=correct_sql,
        in_place=getattr(args, "in_place", False),
        by=user_and_host(),
        note=getattr(args, "note", ""),
    )


def _corrections(args: argparse.Namespace) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the corrections by constants and by SQL, by column."""
    correct: dict[str, str | None] = {}
    correct_sql: dict[str, str] = {}
    for each in getattr(args, "set", []):
        if each.column in correct or each.column in correct_sql:
            raise _corrected_twice(each.column)
        if each.is_sql:
            correct_sql[each.column] = each.value
        else:
            correct[each.column] = each.value
    for column in getattr(args, "null", []):
        if column in correct or column in correct_sql:
            raise _corrected_twice(column)
        correct[column] = None
    return correct, correct_sql


def _corrected_twice(column: str) -> Invalid:
    return Invalid(
        f"column {column!r} is corrected twice",
        expected="one --set or --null for each column",
        help="every expression sees the row as it was quarantined, so a column can only get one value: keep one",
        reason="CORRECTED_TWICE",
    )


def _check_rules(rules: Sequence[str], quarantine: QuarantinedRows) -> list[str]:
    broken = quarantine.broken() if rules else set()
    for rule in rules:
        if rule not in broken:
            raise Invalid(
                f"no row in quarantine of gate {quarantine.gate!r} broke a rule {rule!r}",
                expected=" or ".join(sorted(broken)) or "rows in quarantine",
                help="`tidegate quarantine list` shows which rules were broken",
                reason="NO_SUCH_RULE",
            )
    return list(rules)


def _refuse_intervals(target: Target) -> None:
    view = target.ledger.view()
    if view.entries and view.entries[-1].plan.by_interval:
        raise Invalid(
            f"pipeline {target.name!r} is an interval pipeline: reprocessing replaces the interval's rows",
            expected="a continuous pipeline",
            help="correct the input or the rules, and reprocess the interval: clear its run",
            reason="BY_INTERVAL",
        )


def _withdraw(target: Target, args: argparse.Namespace, out: Output) -> int:
    request = Request(
        **stamp(seams.new_id()), number=1, gate=args.gate, action="withdraw", withdraws=args.number, by=user_and_host()
    )
    ask(target.ledger, request)
    out.document({"pipeline": target.name, "gate": args.gate, "withdrawn": args.number})
    out.line(f"Request {args.number} of gate {args.gate} is withdrawn.")
    return 0


def quarantined_gates(target: Target) -> list[str]:
    """List the gates that have quarantined rows."""
    return [name for name in target.ledger.store.names("quarantine") if _open(target, name) is not None]


def require_quarantine(target: Target, gate: str) -> QuarantinedRows:
    """Open a gate's quarantine; raise Rejected if it has none."""
    quarantine = _open(target, gate)
    if quarantine is None:
        raise Rejected(
            f"gate {gate!r} of pipeline {target.name!r} has quarantined no rows",
            expected=" or ".join(quarantined_gates(target))
            or "a gate whose policy is quarantine, and rows that break its rules",
            help=f"`tidegate quarantine list {target.argument}` shows all",
            reason="NO_QUARANTINE",
        )
    return quarantine


def _open(target: Target, gate: str) -> QuarantinedRows | None:
    if "/" in gate or gate.startswith("."):
        return None
    return open_quarantine(target.ledger.home, gate, target.settings.storage_options)
