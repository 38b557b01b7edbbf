"""Defects between two capabilities that were found by hand once, planted again: `make cuts` and `make lives` must find
each by a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.spark.graphs_of_other_keys import drawn
from tests.spark.mended_lives import MendedLife
from tests.spark.random_cuts import CutStory
from tests.spark.random_cuts import told as told_of_cuts
from tests.spark.random_histories import told as told_of_life
from tidegate.backfill import open_backfill
from tidegate.gates.quarantine.returning import ReleasedRows
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph import retractions
from tidegate.protocol.backfill import ReplayCut

__all__ = ["PLANTED", "Planted", "tell_cuts", "tell_life"]

Patches = Iterator[Any]


def _a_table_by_other_keys_removes_what_another_row_holds() -> Patches:
    yield mock.patch.object(retractions, "_may_share_keys", return_value=False)


def _released_rows_are_lost_where_they_are_late() -> Patches:
    real = ReleasedRows._with_reasons
    yield mock.patch.object(
        ReleasedRows, "_with_reasons", lambda self, rows, fields, takers: real(self, rows, fields, ())
    )


def _an_old_row_brings_back_what_was_removed() -> Patches:
    yield mock.patch.object(retractions, "_remembering", return_value=None)


def _a_backfill_goes_by_the_clock_of_now() -> Patches:
    real = open_backfill.on_cut

    def on_cut(*given: Any, **named: Any) -> Any:
        cut = real(*given, **named)
        return replace(cut, clock=str(stamp("now")["created"])) if isinstance(cut, ReplayCut) else cut

    yield mock.patch.object(open_backfill, "on_cut", on_cut)


def tell_cuts(seed: int, root: Path, spark: Any) -> list[str]:
    """The seed's graph, cut in two, without faults."""
    graph = drawn(seed)
    story = replace(CutStory.of(graph, seed, checkpoints=3), in_jobs=False)
    story.faults[:] = ["", "", ""]
    return told_of_cuts(graph, story, story.run(graph, root, spark))


def tell_life(seed: int, acts: tuple[str, ...], root: Path, spark: Any) -> list[str]:
    """The seed's kind of pipeline, to which this happens."""
    life = MendedLife(seed, root, spark)
    life.tell(acts)
    return told_of_life(life)


class Planted(NamedTuple):
    patches: Callable[[], Patches]
    seed: int
    acts: tuple[str, ...] = ()
    """Of a life: what must happen before it shows. Else it is one of random cuts."""

    def tell(self, root: Path, spark: Any) -> list[str]:
        """What is wrong then."""
        return tell_life(self.seed, self.acts, root, spark) if self.acts else tell_cuts(self.seed, root, spark)

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


PLANTED = {
    "A1": Planted(_a_table_by_other_keys_removes_what_another_row_holds, 120),
    "A3": Planted(_released_rows_are_lost_where_they_are_late, 146, ("checkpoint", "release")),
    "A4": Planted(_an_old_row_brings_back_what_was_removed, 35),
    "A6": Planted(_a_backfill_goes_by_the_clock_of_now, 0, ("checkpoint", "checkpoint", "backfill", "swap")),
}
"""By their numbers in the list of defects."""
