"""Changes of one line after which all tests stayed green when an independent verification made them."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.changes import LIBRARY, Change, planted_in

__all__ = ["planted"]

SWAP = "backfill/swap.py"


class _Line(NamedTuple):
    file: str
    before: str
    after: str


_LINES = {
    "swap: the tombstone is not looked at again after the entry": _Line(
        SWAP, "    if ledger.line_discarded(line.name) is not None:", "    if False:"
    ),
    "swap: the line may have moved on": _Line(
        SWAP, "if head.decision is None or head.decision.manifest != plan.rollback.line.manifest:", "if False:"
    ),
    "swap: lower entries are not durable": _Line(SWAP, "    control.sync_below(ledger, view, 0)", "    pass"),
    "swap: requests of the head stand": _Line(SWAP, "if not name.startswith(QUARANTINE):", "if True:"),
    "line: decisions are not durable": _Line(
        "backfill/open_backfill.py", "            self._live.ledger.sync_decision(id)  # W2", "            pass"
    ),
    "discard: the pin is removed before the files": _Line(
        "backfill/discard.py",
        "    ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name=line.name, by=by))\n    while",
        "    ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name=line.name, by=by))\n"
        "    ledger.delete_pin(pin_owner(line.name))\n    while",
    ),
    "shadow: replaced files stay": _Line(
        "connectors/delta/sink/shadow.py", "return added, sorted(former - set(shown))", "return added, []"
    ),
    "restore: what lies below a line's folder is foreign": _Line(
        "connectors/delta/sink/restore.py", "while path_below.startswith(LINE):", "while False:"
    ),
    "export: the hint is believed": _Line(
        "connectors/files/export_folder.py",
        " or self._store.names(_LOG)\n        if not names:",
        "\n        if not names:",
    ),
    "stores: a client survives a fork": _Line("stores.py", "key = (os.getpid(), store,", "key = (0, store,"),
    "sessions: one that grows counts as moved": _Line(
        "operators/kernels/sessions.py", "(changed[island] & (starts != begins[island]))", "(changed[island])"
    ),
    "lifetime: a microsecond longer, in workers": _Line(
        "state/arrow/merging.py", "pc.greater(rows[TOUCHED], limit)", "pc.greater_equal(rows[TOUCHED], limit)"
    ),
    "lifetime: a microsecond longer, for whole files": _Line(
        "state/compaction.py", "file.touched <= limit", "file.touched < limit"
    ),
    "lifetime: a microsecond longer, in Spark": _Line(
        "state/versions.py", "{row}{TOUCHED} > {limit})", "{row}{TOUCHED} >= {limit})"
    ),
    "rank: dropped by the loop": _Line("execution/loop.py", "            rank=schedule.rank,\n", ""),
    "rank: dropped by Airflow's task": _Line(
        "dag/tasks/operators.py", "                    rank=run_params.rank_of(task),\n", ""
    ),
    "delay: it does not reach the timetable": _Line(
        "dag/build.py",
        "Every(settings.interval or 0.0, settings.initial_delay)",
        "Every(settings.interval or 0.0, 0.0)",
    ),
    "hooks: behind a failing one, later checkpoints go on": _Line(
        "execution/notifications.py", "                break\n", "                continue\n"
    ),
    "measures: what is made durable beside takes no time": _Line(
        "execution/job/measuring.py", "async_s=round(overlapping_seconds(beside), 3)", "async_s=0.0"
    ),
    "failures: one that is not published yet ends no row of them": _Line(
        "checkpoint/suspension.py",
        "        if entry.completed:\n            drain = entry.plan.drain",
        "        if entry.completed and entry.id <= view.settled:\n            drain = entry.plan.drain",
    ),
}


def planted() -> dict[str, Change]:
    """All of them, by what they do."""
    return {name: planted_in(f"{LIBRARY}/{line.file}", line.before, line.after, name) for name, line in _LINES.items()}
