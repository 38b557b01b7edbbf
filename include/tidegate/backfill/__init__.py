"""Backfill: compute again, beside the running pipeline, what it has made since a checkpoint, and swap it in at once.

    line     a ledger of its own, forked from a checkpoint, with shadows of the tables     open_backfill.py
    replay   reads the same input again through today's code, as ordinary checkpoints      replay.py
    swap     one entry of the pipeline's own log puts the line's content in place           swap.py
    discard  removes what nobody names                                                      discard.py

docs/protocol.md, section 14, has the rules.
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
