"""What the API answers, from the ledger and the history. Values are plain JSON; nothing is made for a page to trust."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.located import tables_now
from tidegate.errors import Rejected, TidegateError
from tidegate.history import health as condition
from tidegate.history.query import MEASURES, CheckpointHistory, HistoryFilter
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import savepoint
from tidegate.protocol.verdicts import unanswered
from tidegate.records.moments import moment_of
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.ui.pipelines import Known

__all__ = [
    "checkpoint",
    "compared",
    "configuration",
    "graph",
    "listed",
    "overview",
    "row_of_run",
    "samples",
    "way_back",
]

SAMPLES, LETTERS = 20, 256
"""So many values of a broken rule are shown, each cut after so many letters."""
_TELLING = frozenset({"hold", "abort"})
"""Verdicts that a person is to look at."""
_RUN = re.compile(r"airflow:([^:]+):(.*?)(?: \(cleared [0-9]+\))?", re.DOTALL)


def listed(known: Known) -> Json:
    """A pipeline in one line of the list. A damaged one does not keep the others from being shown."""
    row: Json = {"dag": known.dag_id, "pipeline": known.card.pipeline}
    try:
        past = known.past()
        last = past.newest("completed")
        failed = _failed_since(past, last["id"] if last is not None else 0)
        return row | {
            **_condition(known, past.ledger),
            "last_completed": _short(last),
            "age_seconds": _age(last["decided"]) if last is not None else None,
            "lag_seconds": last["lag_seconds"] if last is not None else None,
            "failures": failed,
            "counts": past.counts(),
        }
    except TidegateError as error:
        return row | {"state": "damaged", "good": False, "said": error.what, "cause": "", "remedy": [error.help]}


def overview(known: Known) -> Json:
    """What Flink's overview tells, and how the pipeline is."""
    past = known.past()
    ledger = past.ledger
    named = sorted(savepoint.savepoints(ledger), key=lambda each: each.pin.created)
    view = ledger.view()
    return {
        "dag": known.dag_id,
        "pipeline": known.card.pipeline,
        "started": ledger.begun() is not None,
        "by_interval": known.card.by_interval,
        "gates": list(known.card.gates),
        "condition": _condition(known, ledger),
        "suspended": msgspec.to_builtins(control.suspended(view, known.card.tolerable_failed_checkpoints)),
        "counts": past.counts(),
        "latest": {
            "completed": past.newest("completed"),
            "failed": past.newest("aborted"),
            "restored": past.newest("rollback"),
            "savepoint": _savepoint(named[-1]) if named else None,
        },
        "open": [past.one(row["id"]) for row in past.page(HistoryFilter(states=("open", "held"), sort="id")).rows],
        "savepoints": [_savepoint(each) for each in named],
        "history_problem": past.problem,
        "now": seams.now().isoformat(timespec="milliseconds"),
    }


def checkpoint(known: Known, id: int) -> Json:
    """All that is known of one checkpoint."""
    past = known.past()
    row = past.one(id)
    if row is None:
        raise no_such(known, id)
    row["details"]["tables"] = _tables(known, past, row)
    names = [each.name for each in savepoint.savepoints(past.ledger) if each.entry == id]
    last, next_ = _neighbours(past, id)
    more = {"savepoints": names, "run_id": _run_id(row["run"]), "before": last, "after": next_}
    return row | more | {"tasks": _tasks(known), "now": seams.now().isoformat(timespec="milliseconds")}


def no_such(known: Known, id: int) -> Rejected:
    """There never was such a checkpoint, as far as anybody knows."""
    return Rejected(
        f"pipeline {known.card.pipeline!r} has no checkpoint {id}",
        expected="one of its history",
        help="the list shows them all",
        reason="NO_SUCH_CHECKPOINT",
    )


def row_of_run(known: Known, run_id: str) -> Json:
    """The last checkpoint that a run of the DAG has made."""
    past = known.past()
    rows = past.page(HistoryFilter(text=run_id, limit=200)).rows
    found = next((row for row in rows if _run_id(row["run"]) == run_id), None)
    return {"checkpoint": found["id"] if found is not None else None, "run_id": run_id}


def samples(known: Known, id: int, gate: str) -> Json:
    """Which rules a gate found broken, with some of the values that broke them."""
    ledger = known.ledger()
    entry = ledger.entry(id)
    verdicts = {name: said for each in entry.acks.values() for name, said in each.ack.gates.items()} if entry else {}
    if gate not in verdicts:
        raise Rejected(
            f"there are no findings of gate {gate!r} on checkpoint {id} (any more)",
            expected="a checkpoint that is retained, and that the gate has judged",
            help="its history still tells which rules broke",
            reason="NO_SUCH_VERDICT",
        )
    results = ledger.unpack(verdicts[gate].results)
    found = results.get("results", []) if isinstance(results, dict) else []
    return {"checkpoint": id, "gate": gate, "rules": [_rule(each) for each in found[:200] if isinstance(each, dict)]}


def _rule(each: Mapping[str, Any]) -> Json:
    """One expectation's result, in Great Expectations' form."""
    config, result = each.get("expectation_config") or {}, each.get("result") or {}
    values = result.get("partial_unexpected_list") or []
    return {
        "rule": str(config.get("id") or config.get("type") or ""),
        "type": str(config.get("type") or ""),
        "column": str((config.get("kwargs") or {}).get("column") or ""),
        "success": bool(each.get("success")),
        "unexpected": result.get("unexpected_count"),
        "observed": str(result["observed_value"])[:LETTERS] if result.get("observed_value") is not None else None,
        "values": [str(value)[:LETTERS] for value in values[:SAMPLES]],
    }


def configuration(known: Known) -> Json:
    """Every setting and where it came from; and what the last checkpoint was made with, where that differs."""
    past = known.past()
    rows = past.page(HistoryFilter(limit=1)).rows
    used = (past.one(rows[0]["id"]) or {}).get("details", {}).get("config", {}) if rows else {}
    settings = [
        {"key": key, "value": value, "origin": origin, "used": _setting(used[key]) if key in used else None}
        for key, value, origin in known.card.settings
    ]
    card = known.card
    return {"pipeline": card.pipeline, "root": card.root, "project": card.project, "settings": settings}


def graph(known: Known) -> Json:
    """How the pipeline is built, with what each part did in the last completed checkpoint."""
    past = known.past()
    last = past.newest("completed")
    details = last["details"] if last is not None else {}
    parts = [msgspec.to_builtins(part) | _figures(part.name, part.role, details) for part in known.card.parts]
    return {"checkpoint": last["id"] if last is not None else None, "jobs": known.card.jobs, "parts": parts}


def _figures(name: str, role: str, details: Json) -> Json:
    """What a part has told of itself. Names are unique among parts of a role only: a sink may be called as its operator
    is, and each has figures of its own."""
    found: Json = {"rows": None, "seconds": None, "watermark": None, "bytes": None, "late": None, "verdict": None}
    prefix = {"sink": "stage", "operator": "state", "gate": "gate"}.get(role)
    for job in details.get("jobs", {}).values():
        if role == "sink":
            found["rows"] = job["rows"].get(name, found["rows"])
            found["bytes"] = job["bytes"].get(name, found["bytes"])
        if role == "source" and name in job.get("taken", {}):
            found["rows"] = job["taken"][name]["rows"]
        if role in ("source", "operator"):
            found["watermark"] = job["watermarks"].get(name, found["watermark"])
            found["late"] = job["counts"].get(name, {}).get("late", found["late"])
        found["seconds"] = job["seconds"].get(f"{prefix} {name}", found["seconds"]) if prefix else found["seconds"]
    states = {key: size for key, size in details.get("states", {}).items() if key.split(".")[1:2] == [name]}
    if role == "operator" and states:
        found["bytes"] = sum(size["bytes"] for size in states.values())
        found["rows"] = sum(size["rows"] for size in states.values())
    if role == "gate" and (said := details.get("gates", {}).get(name)):
        found |= {"verdict": said["outcome"], "rows": said["rows"], "late": None, "quarantined": said["quarantined"]}
    if role == "source":
        found["summary"] = details.get("sources", {}).get(name, {}).get("summary")
    return found


def compared(known: Known, before: int, after: int) -> Json:
    """What differs between two checkpoints."""
    past = known.past()
    rows = past.one(before), past.one(after)
    for id, row in zip((before, after), rows, strict=True):
        if row is None:
            raise no_such(known, id)
    one, other = (row for row in rows if row is not None)
    for row in (one, other):
        row["details"]["tables"] = _tables(known, past, row)
    told = {name: {"before": one[name], "after": other[name]} for name in MEASURES}
    pairs = one["details"], other["details"]
    return {
        "before": one | {"details": None},
        "after": other | {"details": None},
        "measures": told,
        **{part: _pairs(*(each.get(part, {}) for each in pairs)) for part in ("sources", "tables", "states", "gates")},
        "settings": _changed(*(each.get("config", {}) for each in pairs)),
        "code_changed": pairs[0].get("code_fingerprint") != pairs[1].get("code_fingerprint"),
    }


def _pairs(before: Json, after: Json) -> Json:
    return {name: {"before": before.get(name), "after": after.get(name)} for name in sorted({*before, *after})}


def _setting(value: Any) -> str:
    """As tidegate.toml has it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changed(before: Json, after: Json) -> Json:
    return {name: pair for name, pair in _pairs(before, after).items() if pair["before"] != pair["after"]}


def way_back(known: Known, to: int) -> Json:
    """What a rollback would do, as far as records tell: tables themselves are looked at by the run that does it."""
    past = known.past()
    ledger = past.ledger
    target, published = past.one(to), ledger.published(to)
    possible = target is not None and target["state"] in ("completed", "rollback") and target["kept"]
    if target is None or not possible or published is None:
        raise Rejected(
            f"checkpoint {to} is none that can be gone back to",
            expected="one that is completed, on all tables, retained, and not rolled back",
            help="the list shows which are kept",
            reason="NO_TARGET",
        )
    tables = _tables(known, past, target)
    last = past.newest("completed")
    now = last["details"]["tables"] if last is not None else {}
    return {
        "to": to,
        "decided": target["decided"],
        "undone": past.behind(to, "completed"),
        "ended": past.behind(to, "open", "held"),
        "sources": sorted(target["details"]["sources"]),
        "tables": {
            name: {"now": now.get(name, {}).get("version"), "back_to": at["version"], "uri": at["uri"]}
            for name, at in sorted(tables.items())
        },
    }


def _tables(known: Known, past: CheckpointHistory, row: Json) -> Json:
    """Where a checkpoint's tables stood, at the places where they lie now: a project may have been moved since."""
    tables: Json = row["details"]["tables"]
    return tables_now(row["id"], tables, past.ledger, Place(known.data, known.options)) if tables else tables


# -- small parts ---------------------------------------------------------------------------------------


def _condition(known: Known, ledger: Ledger) -> Json:
    seen = condition.look(ledger, known, lambda plan: None)
    found = condition.condition(seen, _say(known.card.pipeline))
    told = {"state": found.state, "good": found.good, "said": found.said, "cause": found.cause}
    told |= {"remedy": list(found.remedy), "entry": found.entry, "reason": found.reason}
    return told | _whose(known, seen, found)


def _whose(known: Known, seen: condition.Observations, found: condition.Health) -> Json:
    """Whose log says more: Airflow's run and its task; and which gates have found what is to be told."""
    if found.state == "troubled" and seen.trouble is not None:
        return {"run_id": _run_id(seen.trouble.run), "task": seen.trouble.step, "gates": []}
    entry = seen.view.get(found.entry) if found.entry is not None else None
    if entry is None or entry.control is not None:
        return {"run_id": None, "task": None, "gates": []}
    gates = [
        name for acked in entry.acks.values() for name, said in acked.ack.gates.items() if said.outcome in _TELLING
    ]
    if found.state == "held":
        waits = next((each.gate for each in unanswered(entry)), "")
        return {"run_id": _run_id(entry.plan.run), "task": _tasks(known)["gates"].get(waits), "gates": gates}
    failed = next((job for job in entry.plan.acks if job not in entry.acks), None) if found.reason else None
    task = _tasks(known)["jobs"].get(failed, "complete")
    return {"run_id": _run_id(entry.plan.run), "task": None if found.good else task, "gates": gates}


def _say(pipeline: str) -> condition.Command:
    """What the command line calls a command is a button or a page here."""

    def say(verb: str, *words: object) -> str:
        told = " ".join(map(str, words))
        aside = ", with what a gate would hold set aside" if "--quarantine-all" in told else ""
        known = {
            "resume": f"the button Resume{aside}",
            "explain": f"the page of checkpoint {told}",
            "approve": "the button Approve",
            "reject": "the button Reject",
            "watch": "this page",
        }
        return known.get(verb, f"tidegate {verb} {pipeline} {told}".rstrip())

    return say


def _short(row: Json | None) -> Json | None:
    names = ("id", "decided", "seconds", "rows_out", "run")
    return {name: row[name] for name in names} if row is not None else None


def _age(text: str | None) -> float | None:
    moment = moment_of(text)
    return round((seams.now() - moment).total_seconds(), 1) if moment is not None else None


def _failed_since(past: CheckpointHistory, id: int) -> int:
    rows = past.page(HistoryFilter(states=("aborted",), limit=200)).rows
    return sum(row["id"] > id for row in rows)


def _savepoint(each: savepoint.Savepoint) -> Json:
    pin = each.pin
    return {"name": each.name, "id": each.entry, "by": pin.by, "note": pin.note, "at": pin.created, "kept": each.there}


def _neighbours(past: CheckpointHistory, id: int) -> tuple[int | None, int | None]:
    ids = past.rows["id"].to_pylist()
    place = ids.index(id)
    return (ids[place - 1] if place else None), (ids[place + 1] if place + 1 < len(ids) else None)


def _run_id(run: str) -> str | None:
    """Airflow's name of the run, if it is one of Airflow's."""
    match = _RUN.fullmatch(run)
    return match[2] if match is not None else None


def _tasks(known: Known) -> Json:
    """The DAG's task of each part, for links to logs."""
    jobs = {name: f"job_{name}" for name in known.card.jobs}
    return {"jobs": jobs, "gates": {name: f"gate_{name}" for name in known.card.gates}, "complete": "complete"}
