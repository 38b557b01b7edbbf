"""The alerting rules in Prometheus' own program: they load, each fires when it is to, and for nobody else.

promtool is part of Prometheus: on the PATH, or named by PROMTOOL. `docs/operations/monitoring.md` says where it is had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.cli import inspect

RULES = Path(inspect.__file__).with_name("alerts.yml")
WELL = {
    "needsAttention": 0,
    "readable": 1,
    "suspended": 0,
    "heldCheckpoints": 0,
    "unpublishedCheckpoints": 0,
    "numberOfConsecutivePlanFailures": 0,
    "neverRead": 0,
    "intervalGaps": 0,
    "promiseBroken": 0,
}
FIRES: dict[str, tuple[dict[str, int], str]] = {
    "TidegateNeedsAttention": ({"needsAttention": 1}, "11m"),
    "TidegateUnreadable": ({"readable": 0}, "6m"),
    "TidegateSuspended": ({"suspended": 1}, "1m"),
    "TidegateHeld": ({"heldCheckpoints": 1}, "1m"),
    "TidegateCompletesNothing": ({"lastCheckpointCompletedTimestamp": 0}, "2h"),
    "TidegateUnpublished": ({"unpublishedCheckpoints": 2}, "31m"),
    "TidegateCannotPlan": ({"numberOfConsecutivePlanFailures": 1}, "16m"),
    "TidegateLeavesInputUnread": ({"neverRead": 3}, "1m"),
    "TidegatePromiseBroken": ({"promiseBroken": 1}, "1m"),
}
"""By alert what is wrong, and from when on it fires."""


@pytest.fixture(scope="module")
def promtool() -> str:
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool on the PATH, nor does PROMTOOL name one")
    return found


def rules() -> dict[str, Any]:
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def test_every_rule_is_played() -> None:
    assert set(rules()) == set(FIRES)


def test_prometheus_loads_the_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FIRES)} rules found" in done.stdout


@pytest.mark.parametrize("alert", FIRES)
def test_a_rule_fires_for_the_pipeline_that_it_is_about(promtool: str, tmp_path: Path, alert: str) -> None:
    wrong, when = FIRES[alert]
    series = [sample("orders", name, value) for name, value in (WELL | wrong).items()]
    series += [sample("other", name, value) for name, value in WELL.items()]
    if alert == "TidegateCompletesNothing":  # another pipeline completes one each minute
        series.append({"series": metric("other", "lastCheckpointCompletedTimestamp"), "values": "0+60000x200"})
    rule = rules()[alert]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [expected(alert, rule, when)]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def metric(pipeline: str, name: str) -> str:
    label = {"neverRead": ', source="in"', "promiseBroken": ', sink="out"'}.get(name, "")
    return f'tidegate_{name}{{pipeline="{pipeline}"{label}}}'


def sample(pipeline: str, name: str, value: int) -> dict[str, str]:
    return {"series": metric(pipeline, name), "values": f"{value}x200"}


def expected(alert: str, rule: dict[str, Any], when: str) -> dict[str, Any]:
    named = {"{{ $labels.pipeline }}": "orders", "{{ $labels.sink }}": "out"}
    said = {**named, "{{ $value | humanizeDuration }}": "2h 0m 0s"}
    annotations = dict(rule["annotations"])
    for template, text in said.items():
        annotations = {name: value.replace(template, text) for name, value in annotations.items()}
    about = {"TidegateLeavesInputUnread": {"source": "in"}, "TidegatePromiseBroken": {"sink": "out"}}
    fired_for = {"pipeline": "orders", **rule["labels"]} | about.get(alert, {})
    fired = [{"exp_labels": fired_for, "exp_annotations": annotations}]
    return {"eval_time": when, "alertname": alert, "exp_alerts": fired}
