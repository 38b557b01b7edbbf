"""A checkpoint's verdicts as validation results of Great Expectations, made from what the acks have recorded.

A verdict holds Great Expectations' own result for each rule, with exact counts. What is missing is around it: the run,
the batch, and the suite's own words. All of that is in the plan, so a result can be made long after the rows were
judged, and nothing is stored twice. No import of Great Expectations is needed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tidegate.gates.expectations.checking import Problems
from tidegate.gates.expectations.suite import GIVEN_ID
from tidegate.gates.expectations.yaml_lines import load_yaml
from tidegate.gates.judging.samples import remove_values
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records.names import entry_name
from tidegate.records.records import Json, Verdict
from tidegate.versions.ranges import installed_version

__all__ = ["RUN", "Validation", "validations_of"]

RUN: Final = "checkpoint-"
"""How the name of a run begins; the checkpoint's number follows."""
_WRITTEN: Final = ("type", "kwargs", "meta", "severity", "notes", "description")
"""The keys of an expectation in a suite that a result repeats."""


@dataclass(frozen=True)
class Validation:
    """One gate's verdict in one checkpoint."""

    document: Json
    """The validation result, as Great Expectations writes it."""
    suite: Json
    """The suite that judged, in the same form."""
    modules: tuple[str, ...]
    """The modules that define expectations of the user's own."""
    path: tuple[str, ...]
    """Where Great Expectations' store of results in files keeps it: suite, run, time and batch."""


def validations_of(ledger: Ledger, entry: Entry, *, values: bool = False) -> Iterator[Validation]:
    """Yield the verdicts of all gates of expectations in a checkpoint, whatever became of it.

    values: with the recorded samples of bad values and with values that were observed. Never of private columns: their
    values were not recorded.
    """
    for acked in entry.acks.values():
        for gate, verdict in acked.ack.gates.items():
            results = ledger.unpack(verdict.results)
            if isinstance(results.get("results"), list) and "suite_name" in results:
                yield _validation(ledger, entry, gate, verdict, results, values=values)


def _validation(
    ledger: Ledger, entry: Entry, gate: str, verdict: Verdict, results: Json, *, values: bool
) -> Validation:
    pipeline = ledger.pipeline
    suite = _planned_suite(ledger, entry, gate, results)
    planned = datetime.fromisoformat(entry.plan.time).astimezone(UTC)
    run = {"run_name": f"{RUN}{entry_name(entry.id)}", "run_time": planned.isoformat()}
    batch = f"{pipeline}-{gate}"
    findings = []
    for finding, written in zip(results["results"], suite["expectations"], strict=True):
        shown = finding if values else remove_values(finding)
        findings.append({**shown, "expectation_config": written})
    about = {
        "pipeline": pipeline,
        "checkpoint": entry.id,
        "checkpoint_state": _state(entry, verdict),
        "gate": gate,
        "verdict": verdict.outcome,
        "rows": verdict.rows,
        "quarantined": verdict.quarantined,
    }
    meta = {
        "great_expectations_version": installed_version("great-expectations") or "1",
        "run_id": run,
        "validation_time": run["run_time"],
        "validation_id": None,
        "checkpoint_id": None,
        "batch_spec": {"data_asset_name": f"{pipeline}/{gate}"},
        "batch_markers": {"ge_load_time": planned.strftime("%Y%m%dT%H%M%S.%fZ")},
        "batch_parameters": about,
        "active_batch_definition": {
            "datasource_name": pipeline,
            "data_connector_name": "tidegate",
            "data_asset_name": gate,
            "batch_identifiers": {"checkpoint": entry.id},
        },
    }
    document = {
        **results,
        "suite_name": suite["name"],
        "results": findings,
        "meta": meta,
        "id": _id(None, f"{ledger.home}/{entry.plan.attempt}/{gate}"),
    }
    folders = [_file_name(part) for part in str(suite["name"]).split(".")]
    path = (*folders, run["run_name"], planned.strftime("%Y%m%dT%H%M%S.%fZ"), f"{batch}.json")
    return Validation(document, suite, tuple(verdict.policy.get("modules", ())), path)


def _planned_suite(ledger: Ledger, entry: Entry, gate: str, results: Json) -> Json:
    """Return the suite that the plan has fixed, as Great Expectations would write it, with its expectations in the
    order of the results.

    If an older version has planned the checkpoint, the plan has no suite; then what the results say about it is used.
    """
    fixed = entry.plan.fixed_inputs.get(gate)
    text = ledger.unpack(fixed).get("suite") if fixed is not None else None
    written = _plain(text) if isinstance(text, str) else {}
    expectations = written.get("expectations")
    judged = [finding["expectation_config"] for finding in results["results"]]
    if not isinstance(expectations, list) or len(expectations) != len(judged):
        expectations = judged
    name = results["suite_name"]
    whole = {key: written[key] for key in ("meta", "notes") if written.get(key) is not None}
    return {
        "name": name,
        "id": _id(written.get("id"), name),
        "meta": {},
        **whole,
        "expectations": [
            {**_expectation(each), "id": _id(each.get("id"), f"{name}/{config.get('id')}")}
            for each, config in zip(expectations, judged, strict=True)
        ],
    }


def _expectation(written: Mapping[str, Any]) -> Json:
    kept = {key: written[key] for key in _WRITTEN if written.get(key) is not None}
    return {"kwargs": {}, "meta": {}, "severity": "critical", **kept}


def _plain(text: str) -> Json:
    """Return a suite's text, JSON or YAML, as plain values of JSON. The suite was checked when it judged."""
    try:
        plain = json.loads(text)
    except json.JSONDecodeError:
        plain = load_yaml(text, Problems("")).plain()
    builtins = msgspec.to_builtins(plain)
    return builtins if isinstance(builtins, dict) else {}


def _id(written: object, name: str) -> str:
    """Return the id that Great Expectations has given, or one of our own: it accepts UUIDs only."""
    if isinstance(written, str) and GIVEN_ID.fullmatch(written):
        return written
    digits = hashlib.sha256(name.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def _state(entry: Entry, verdict: Verdict) -> str:
    if entry.completed:
        return "completed"
    if entry.aborted:
        return "aborted"
    return "held" if verdict.outcome == "hold" else "open"


def _file_name(text: str) -> str:
    """Return a suite's name as a name of a file. Great Expectations would refuse slashes, and so would some disks
    others."""
    return re.sub(r"[^\w() +=@-]", "_", text)[:120] or "_"
