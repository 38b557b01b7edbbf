"""Backfill: recompute the pipeline's output since a checkpoint while the pipeline runs, and swap it in atomically.

    line     the backfill's ledger, forked from a checkpoint, with shadows of the tables    open_backfill.py
    replay   reads the same input again through today's code, as ordinary checkpoints       replay.py
    swap     one entry of the pipeline's own log brings in the backfill's content           swap.py
    discard  removes the files that no entry names                                          discard.py

docs/protocol.md, section 14, has the rules. It calls a backfill a *line*, as do the ledger's paths. The pipeline
itself, with its ledger and tables, is called *live*.
"""

from tidegate.backfill.discard import discard
from tidegate.backfill.open_backfill import OpenBackfill, begin, open_line
from tidegate.backfill.replay import replay
from tidegate.backfill.swap import (
    CompletedSwap,
    examine_swap,
    pause_pipeline,
    release_pipeline,
    released_on_failure,
    swap,
)

__all__ = [
    "CompletedSwap",
    "OpenBackfill",
    "begin",
    "discard",
    "examine_swap",
    "open_line",
    "pause_pipeline",
    "release_pipeline",
    "released_on_failure",
    "replay",
    "swap",
]
