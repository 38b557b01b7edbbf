"""What corrections by SQL, and judging rows again, would do: found by the command, in a process of its own.

This process is Airflow's web server, which imports neither Spark nor Great Expectations. So it runs the command with
`--dry-run`, which checks the SQL and shows its effect, and reads the answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from tidegate.checkpoint.quarantine_requests import verdict_of_gate
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.records.records import Json, Request
from tidegate.ui.action_requests import SampleRow
from tidegate.ui.pipelines import PipelineRef

__all__ = ["effects", "hides", "needs_preview", "preview_request", "samples"]

LIMIT_S = 240.0
"""How long the command may take. Spark may have to start first."""
_REMEMBERED = 64
_one_at_a_time = threading.Semaphore(1)
_found: OrderedDict[str, Json] = OrderedDict()
"""The last answers, so that what a dialog has shown is not computed again once it is confirmed."""


def needs_preview(request: Request) -> bool:
    """Return whether a request is checked by the command."""
    return bool(request.correct_sql) or request.action == "rejudge"


def preview_request(pipeline: PipelineRef, ledger: Ledger, request: Request, *, again: bool = False) -> Json:
    """Return what the command says of a request that is not recorded yet. Raise what it refuses.

    again: run it even if its answer is known, because rows or the suite may have changed since.
    """
    key = f"{ledger.home} {request.seen} {_words(pipeline, request)}"
    if key in _found and not again:
        return _found[key]
    if not _one_at_a_time.acquire(timeout=10):
        raise Unavailable(
            "another request is looking at quarantined rows",
            expected="one at a time, so that Airflow's pages stay fast",
            help=f"try again in a moment. {_elsewhere(request)}",
            reason="BUSY",
        )
    try:
        answer = _run(pipeline, request)
    finally:
        _one_at_a_time.release()
    _found[key] = answer
    while len(_found) > _REMEMBERED:
        _found.popitem(last=False)
    return answer


def _words(pipeline: PipelineRef, request: Request) -> list[str]:
    """Return the command's arguments. Values follow an equals sign, so none can be read as an option."""
    words = ["quarantine", request.action, pipeline.card.pipeline, request.gate, "--dry-run", "--json"]
    words += [f"--id={id}" for id in request.ids] + [f"--rule={rule}" for rule in request.rules]
    for name, value in request.correct.items():
        if value is not None:
            words.append(f"--set={name}={value}")
    for name, value in request.correct.items():
        if value is None:
            words.append(f"--null={name}")
    for name, sql in request.correct_sql.items():
        words.append(f"--set={name} = {sql}")
    if not (request.ids or request.rules):
        words.append("--all")
    return [*words, "-D", f"root={pipeline.root}", "-D", f"data={pipeline.data}"]


def _run(pipeline: PipelineRef, request: Request) -> Json:
    folder = Path(pipeline.card.project)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", *_words(pipeline, request)],
            cwd=folder if folder.is_dir() else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"the rows could not be looked at within {LIMIT_S:.0f} seconds",
            help=_elsewhere(request),
            reason="BUSY",
        ) from None
    try:
        answer: Json = json.loads(done.stdout)
    except ValueError:
        raise Unavailable(
            "the rows could not be looked at on Airflow's web server",
            expected="Python, Java and Spark there, as `tidegate doctor --environment` checks",
            help=_elsewhere(request),
            reason="NO_ANSWER",
        ) from None
    if "error" in answer:
        raise _error(answer["error"])
    return answer


def _elsewhere(request: Request) -> str:
    if request.action == "rejudge":
        return "`tidegate quarantine rejudge PIPELINE GATE --dry-run` does the same elsewhere"
    return "`tidegate quarantine release PIPELINE GATE --all --dry-run` does the same elsewhere"


def _error(told: Json) -> TidegateError:
    kinds: dict[str, type[TidegateError]] = {"invalid": Invalid, "rejected": Rejected}
    kind = kinds.get(told["kind"], Unavailable)
    return kind(told["message"], expected=told["expected"], help=told["help"], reason=told["reason"])


def effects(request: Request, answer: Json, *, with_values: bool) -> list[str]:
    """Return what the request would do, in sentences."""
    preview, expected = answer["preview"], answer["expected"]
    lines = []
    if request.action == "rejudge":
        passing = expected["counts"]
        does = "passes, and continues" if passing == 1 else "pass, and continue"
        lines.append(f"By today's suite, {_count(passing)} {does} with the next checkpoint.")
        names = dict.fromkeys([*preview["rules"], *preview["rules_after"]])
        for name in names:
            before, after = preview["rules"].get(name, 0), preview["rules_after"].get(name, 0)
            lines.append(f"{name}: {before:,} before, {after:,} now.")
    else:
        lines.append(f"Changed: {_count(preview['changed'])}.")
        for name, rows in preview["to_null"].items():
            lines.append(f"{name} becomes null in {_count(rows)}.")
    for line in expected["operators"]:
        lines.append(f"{line[:1].upper()}{line[1:]}.")
    for reason, rows in expected["not_released"].items():
        lines.append(f"{_count(rows)} {'stays' if rows == 1 else 'stay'} in quarantine: {reason}.")
    if preview["error"] and with_values:
        lines.append(f"For one of them, Spark says: {preview['error']}")
    if preview["not_judged"]:
        lines.append(f"The gate's rules are not applied here, but by the checkpoint: {preview['not_judged']}.")
    return lines


def samples(pipeline: PipelineRef, ledger: Ledger, request: Request, answer: Json) -> list[SampleRow]:
    """Return a few rows before and after, if the user may read rows. Private columns are left out, and so is what SQL
    makes of them."""
    if not pipeline.may_read_rows:
        return []
    hidden = _hidden(pipeline, ledger, request.gate)
    from_hidden = set()
    for name, sql in request.correct_sql.items():
        if any(each in sql.casefold() for each in hidden):
            from_hidden.add(name)
    rows = []
    for sample in answer["preview"]["samples"]:
        after = {}
        for name, value in sample["after"].items():
            if name.casefold() not in hidden:
                after[name] = _cell(value)
        rows.append(
            SampleRow(
                id=sample["id"],
                before={
                    name: _cell(value) for name, value in sample["before"].items() if name.casefold() not in hidden
                },
                after={name: value for name, value in after.items() if name not in from_hidden},
                stays_because=sample["stays"],
            )
        )
    return rows


def hides(pipeline: PipelineRef, ledger: Ledger, request: Request) -> bool:
    """Return whether a column is private, so that Spark's errors, which may quote it, are not shown."""
    return bool(_hidden(pipeline, ledger, request.gate))


def _hidden(pipeline: PipelineRef, ledger: Ledger, gate: str) -> set[str]:
    """Return the columns whose values pages do not show: the gate's private ones, and those of `sample_hidden`."""
    verdict = verdict_of_gate(ledger, gate)
    private = verdict.policy.get("private", []) if verdict is not None else []
    settings = {key: value for key, value, _ in pipeline.card.settings}
    named = [name.strip() for name in settings.get("sample_hidden", "").split(",")]
    return {name.casefold() for name in [*private, *named] if name}


def _cell(value: Any) -> str | None:
    return None if value is None else str(value)[:256]


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"
