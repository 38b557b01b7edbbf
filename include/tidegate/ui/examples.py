"""Example answers of all routes, for the API's description: a shop whose gate has quarantined two orders."""

from __future__ import annotations

from typing import Any, Final

from tidegate.history.row import MEASURES

__all__ = ["EXAMPLES"]

_ROW: dict[str, Any] = dict.fromkeys(MEASURES) | {
    "id": 7,
    "kind": "scheduled",
    "outcome": "completed",
    "reason": "",
    "why": "",
    "quotes_rows": False,
    "by": "",
    "run": "airflow:orders:scheduled__2026-03-01T10:11:00+00:00",
    "attempt": "00f1e2d3c4b5a697",
    "base": 6,
    "generation": 0,
    "back_to": None,
    "backfill": None,
    "interval": None,
    "planned": "2026-03-01T10:11:02.120+00:00",
    "decided": "2026-03-01T10:11:06.345+00:00",
    "published": "2026-03-01T10:11:06.480+00:00",
    "seconds": 4.225,
    "delay_seconds": 0.31,
    "align_seconds": 0.0,
    "sync_seconds": 3.7,
    "process_seconds": 2.9,
    "stage_seconds": 0.74,
    "async_seconds": 0.02,
    "publish_seconds": 0.135,
    "plan_seconds": 0.042,
    "queries": 12,
    "query_seconds": 2.6,
    "query_plan_seconds": 0.7,
    "query_run_seconds": 1.5,
    "task_seconds": 2.1,
    "analyses": 41,
    "analysis_seconds": 0.6,
    "spark_jobs": 15,
    "spark_stages": 15,
    "spark_tasks": 31,
    "jobs": 1,
    "acked": 1,
    "rows_in": 122,
    "bytes_in": 21_470,
    "rate": 33.0,
    "rows_out": 120,
    "bytes_out": 18_332,
    "late": 0,
    "judged": 80,
    "quarantined": 2,
    "released": 0,
    "verdict": "quarantine",
    "state_rows": 4_012,
    "state_bytes": 96_110,
    "state_delta": 5_208,
    "processed_rows": None,
    "processed_bytes": None,
    "persisted_rows": None,
    "persisted_bytes": None,
    "watermark": "2026-03-01T09:10:58.000+00:00",
    "lag_seconds": 3608.345,
    "state": "completed",
    "undone_by": None,
    "replaced_by": None,
}
_COUNTS = {
    "triggered": 7,
    "in_progress": 0,
    "held": 0,
    "completed": 7,
    "failed": 0,
    "cancelled": 0,
    "rollbacks": 0,
    "rolled_back": 0,
    "swaps": 0,
    "replaced": 0,
}
_WELL = {
    "state": "well",
    "needs_nothing": True,
    "summary": "Pipeline orders is well: checkpoint 7 is completed",
    "cause": "",
    "remedy": [],
    "checkpoint": 7,
    "reason": "",
    "run_id": "scheduled__2026-03-01T10:11:00+00:00",
    "task": None,
    "gates": [],
}
_SAVEPOINT = {
    "name": "before-prices",
    "checkpoint": 7,
    "created_by": "mia in Airflow",
    "note": "last good one",
    "created_at": "2026-03-01T10:15:00.000+00:00",
    "retained": True,
}
_BACKFILL = {
    "name": "new-prices",
    "origin": 3,
    "created_by": "mia in Airflow",
    "note": "prices were doubled",
    "created_at": "2026-03-01T10:05:00.000+00:00",
    "state": "replaying",
    "checkpoints": 2,
    "caught_up_to": 6,
    "caught_up_at": "2026-03-01T10:10:06.000+00:00",
    "pending": 1,
    "oldest_pending_seconds": 31.5,
    "held_checkpoint": None,
    "stop_reason": "",
    "swap": None,
    "blocked_by": "",
    "last_comparison": {
        "compared_at": "2026-03-01T10:10:20.000+00:00",
        "is_current": False,
        "tables": {"totals": {"rows_now": 78, "rows_after": 78, "rows_removed": 40, "rows_added": 40}},
        "unchanged_sinks": [],
        "tables_with_other_writers": [],
        "problems": [],
    },
}
_RECENT = {
    "id": [6, 7],
    "state": ["completed", "completed"],
    "planned": ["2026-03-01T10:10:02.016+00:00", "2026-03-01T10:11:02.120+00:00"],
    "seconds": [3.9, 4.225],
    "reason": ["", ""],
}
_WHOLE = _ROW | {"details": {"detail": "", "missing_acks": [], "timeout_s": 600.0}, "records_retained": True}
_SPREAD = {"min": 3.1, "avg": 4.0, "p50": 3.9, "p90": 4.8, "p95": 5.0, "p99": 5.2, "p999": 5.3, "max": 5.3, "count": 7}

EXAMPLES: Final[dict[str, Any]] = {
    "Me": {"name": "mia"},
    "PipelinesAnswer": {
        "pipelines": [
            _WELL
            | {"dag": "orders", "pipeline": "orders", "age_seconds": 31.5, "lag_seconds": 3608.3, "failures": 0}
            | {"last_completed": {name: _ROW[name] for name in ("id", "decided", "seconds", "rows_out", "run")}}
            | {"in_progress": 0, "recent": _RECENT, "owner": "mia", "tags": ["sales"]}
        ],
        "total": 1,
        "complete": True,
        "notices": [
            {
                "problem": "LocalExecutor starts up to 32 workers of 150 MB each",
                "help": "set [core] parallelism (AIRFLOW__CORE__PARALLELISM), to 4 to begin with",
                "is_blocking": False,
            }
        ],
    },
    "Overview": {
        "dag": "orders",
        "pipeline": "orders",
        "started": True,
        "by_interval": False,
        "gates": ["checked"],
        "health": _WELL,
        "suspended": None,
        "counts": _COUNTS,
        "latest": {"completed": _WHOLE, "failed": None, "rollback": None, "swap": None, "savepoint": _SAVEPOINT},
        "open_checkpoints": [],
        "savepoints": [_SAVEPOINT],
        "backfills": [_BACKFILL],
        "recent": _RECENT,
        "history_problem": "",
        "now": "2026-03-01T10:11:38.000+00:00",
        "permissions": dict.fromkeys(["trigger", "edit", "answer", "rollback", "drain", "backfill", "swap"], True),
    },
    "Checkpoints": {"checkpoints": [_ROW], "total": 7, "limit": 1, "offset": 0, "problem": ""},
    "Checkpoint": _WHOLE
    | {
        "progress": {},
        "sampled_parts": ["paid"],
        "savepoints": ["before-prices"],
        "run_id": "scheduled__2026-03-01T10:11:00+00:00",
        "previous": 6,
        "next": None,
        "tasks": {"jobs": {"main": "job_main"}, "gates": {"checked": "gate_checked"}, "complete": "complete"},
        "now": "2026-03-01T10:11:38.000+00:00",
    },
    "ManifestAnswer": {"manifest": {"format": 1, "id": 7, "base": 6, "positions": {}, "jobs": {}, "tables": {}}},
    "Findings": {
        "checkpoint": 7,
        "gate": "checked",
        "rules": [
            {
                "rule": "expect_column_values_to_be_between(amount)",
                "type": "expect_column_values_to_be_between",
                "column": "amount",
                "success": False,
                "unexpected": 2,
                "observed": None,
                "values": ["-5.00", "-0.01"],
                "file": "/srv/orders/in/00017.json",
                "line": 12,
            }
        ],
        "files": ["00017.json"],
        "file_count": 1,
    },
    "CheckpointOfRun": {"checkpoint": 7, "run_id": "scheduled__2026-03-01T10:11:00+00:00"},
    "Summary": {"measures": {"seconds": _SPREAD, "lag_seconds": None}},
    "Configuration": {
        "pipeline": "orders",
        "root": "/srv/data/ledger",
        "project": "/srv/orders",
        "settings": [
            {"key": "num_retained", "value": "10", "origin": "default", "used": "10"}
            | {"help": "how many completed checkpoints are kept to go back to"}
        ],
    },
    "GraphAnswer": {
        "checkpoint": 7,
        "state": "completed",
        "jobs": ["main"],
        "job_states": {"main": "done"},
        "parts": [
            {"name": "totals", "role": "sink", "kind": "delta-upsert", "inputs": ["totals"], "rows": 78}
            | {
                "job": "main",
                "state": "done",
                "seconds": 0.3,
                "bytes": None,
                "late": None,
                "watermark": None,
                "verdict": None,
            }
            | dict.fromkeys(("rate", "waiting", "waiting_files", "waiting_bytes", "waiting_seconds", "sent"))
            | {"state_delta": None, "state_files": None, "event_time": "2026-03-01T09:10:58.000+00:00"}
        ],
        "in_flight": {},
        "sampled_parts": [],
    },
    "Points": {"id": [6, 7], "state": ["completed", "completed"], "seconds": [3.9, 4.225]},
    "Compared": {
        "before": _ROW | {"id": 6, "details": None},
        "after": _ROW | {"details": None},
        "measures": {"seconds": {"before": 3.9, "after": 4.225}},
        "sources": {},
        "tables": {},
        "states": {},
        "gates": {},
        "settings": {"num_retained": {"before": 5, "after": 10}},
        "code_changed": False,
    },
    "Quarantine": {
        "gates": {
            "checked": {
                "waiting": 2,
                "settled": {"released": 1},
                "rules": {"positive": 2},
                "complete": True,
                "requests": [],
            }
        }
    },
    "RowsAnswer": {
        "gate": "checked",
        "total": 2,
        "complete": True,
        "columns": ["order_id", "amount"],
        "rows": [
            {
                "id": "3f2a9c0e5b",
                "checkpoint": 7,
                "rules": ["positive"],
                "values": {"order_id": "81", "amount": "-5.00"},
            }
        ],
    },
    "GateTrend": {
        "gate": "checked",
        "checkpoints": [{"id": 7, "outcome": "quarantine", "rows": 80, "broken": {"positive": 2}}],
    },
    "TableRows": {
        "checkpoint": 7,
        "sink": "totals",
        "table": "/srv/data/tables/totals",
        "version": 7,
        "columns": ["customer", "paid"],
        "rows": [{"customer": "17", "paid": "99.50"}],
    },
    "TableChanges": {
        "checkpoint": 7,
        "since": 6,
        "sink": "totals",
        "table": "/srv/data/tables/totals",
        "keys": ["customer"],
        "columns": ["customer", "paid"],
        "added": 0,
        "removed": 0,
        "changed": 1,
        "rows": [{"before": {"customer": "17", "paid": "90.00"}, "after": {"customer": "17", "paid": "99.50"}}],
    },
    "QuarantinedRowsAt": {
        "gate": "checked",
        "checkpoint": 7,
        "columns": ["order_id", "amount"],
        "rows": [
            {
                "id": "3f2a9c0e5b",
                "checkpoint": 7,
                "rules": ["positive"],
                "values": {"order_id": "81", "amount": "-5.00"},
                "status": "waiting",
            }
        ],
    },
    "PartSamples": {
        "checkpoint": 7,
        "part": "paid",
        "streams": [
            {
                "stream": "paid",
                "columns": ["customer", "amount"],
                "rows": [{"customer": "17", "amount": "9.50"}],
                "hidden": ["email"],
                "left_out": 0,
                "problem": "",
            }
        ],
    },
    "RollbackPlan": {
        "to": 6,
        "decided": "2026-03-01T10:10:06.000+00:00",
        "undone": [7],
        "undone_swaps": [],
        "aborted": [],
        "sources": ["orders"],
        "tables": {
            "totals": {
                "version": 7,
                "restored_version": 6,
                "uri": "/srv/data/tables/totals",
                "rows_stay_because": "",
            }
        },
    },
    "Audit": {
        "actions": [
            {
                "requested_at": "2026-03-01T10:15:00.000+00:00",
                "requested_by": "mia in Airflow",
                "action": "savepoint",
                "request": {"name": "before-prices", "note": "last good one"},
                "succeeded": True,
                "message": "Checkpoint 7 is savepoint before-prices.",
            }
        ]
    },
}
