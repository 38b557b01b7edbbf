"""Days on which what is in flight is let go of: tables lack exactly that, and bugs planted there are found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.simulation.simulate import simulate_seed
from tidegate.lifecycle import rollback
from tidegate.lifecycle.rollback_preview import RollbackPreview

DAYS = 60
RETIRED_BELOW = 659
"""Somebody goes back to a checkpoint while retention claims the lower one that holds an ack of it."""


def test_exactly_what_was_let_go_of_is_missing() -> None:
    days = {seed: simulate_seed(seed, "dropped") for seed in (*range(DAYS), RETIRED_BELOW)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    assert sum(day.story().count("lets go of what is in flight") for day in days.values()) > DAYS // 10


def read_it_nevertheless(patch: Any) -> None:
    real = rollback._manifest

    def manifest(plan: Any, preview: RollbackPreview) -> Any:
        made = real(plan, preview)
        assert preview.target.manifest is not None
        return msgspec.structs.replace(made, in_flight=preview.target.manifest.in_flight)

    patch(rollback, "_manifest", manifest)


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read_it_nevertheless(monkeypatch.setattr)
    assert any(simulate_seed(seed, "dropped").problem for seed in range(DAYS))
