"""Checks whether Airflow's own backfill of a continuous pipeline can begin: it is a backfill by dates.

The same check runs before Airflow creates any run (`ui/previews.py`), and in each run (`dag/tasks/following.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.backfill.choosing import BEGINNING, nearest_start, origin_of
from tidegate.backfill.open_backfill import refuse_origin, refuse_second_backfill
from tidegate.checkpoint import suspension
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import NO_SUCH_CHECKPOINT
from tidegate.records.names import CONF_FROM

__all__ = ["begin_after", "refuse_impossible_start"]


def begin_after(conf: Mapping[str, Any] | None, first_date: str) -> str:
    """Return where a backfill with this configuration begins: where it says, or at its first date."""
    return str((conf or {}).get(CONF_FROM) or first_date)


def refuse_impossible_start(ledger: Ledger, since: str, dag_id: str, name: str | None = None) -> None:
    """Refuse a backfill that cannot begin at `since`, with the nearest date at which one can.

    dag_id: the DAG for backfills. name: the backfill's name, if it has one already.
    """
    suspension.refuse_after_final_cancel(ledger, ledger.view())
    refuse_second_backfill(ledger, name)
    try:
        refuse_origin(ledger, origin_of(ledger, since))
    except (Invalid, Rejected) as error:
        if error.reason != NO_SUCH_CHECKPOINT:
            raise
        options = [
            f'to compute everything again, create it with the configuration {{"{CONF_FROM}": "{BEGINNING}"}}, '
            f"or trigger DAG {dag_id} with Begin after `{BEGINNING}`",
            "to retain more from now on, use the settings num_retained, or retain_per_day for one of each day",
        ]
        nearest = nearest_start(ledger)
        if nearest is not None:
            options.insert(0, f"begin Airflow's backfill at {nearest:%Y-%m-%d %H:%M:%S} UTC or later")
        raise Rejected(
            f"{error.what}: a backfill from there on has nothing to begin after",
            expected=error.expected,
            help=f"{'; '.join(options)}. Nothing has been planned, and the pipeline itself is not affected",
            reason=error.reason,
        ) from None
