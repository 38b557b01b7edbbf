"""metrics: what monitoring gets, and the dashboard that shows it."""

import json
import re

import pytest

from tests.kit.prometheus import parsed
from tests.kit.shop import Shop
from tidegate.history.metrics import METRICS


@pytest.fixture
def shop(folder, tidegate):
    shop = Shop(folder)
    shop.checkpoint()
    shop.checkpoint(publish=False)
    return shop


def test_a_pipelines_numbers_for_people_and_scripts(shop, tidegate):
    found = parsed(tidegate("metrics", "orders").out)
    assert found["numberOfCompletedCheckpoints", (("pipeline", "orders"),)] == 2
    assert found["unpublishedCheckpoints", (("pipeline", "orders"),)] == 1
    told = tidegate("metrics", "orders", "--json").json["pipelines"]["orders"]
    assert {(each["name"], each["value"]) for each in told} >= {("lastCompletedCheckpointId", 2), ("needsAttention", 0)}
    assert all(each["help"] == METRICS[each["name"]] for each in told)


def test_of_all_pipelines_a_damaged_one_hides_none(shop, tidegate):
    torn = shop.coordinator.ledger
    (shop.table.local("../../ledger/torn/checkpoints/00000001")).mkdir(parents=True)
    folder = shop.table.local("../../ledger/torn")
    (folder / "pipeline.json").write_text("{")
    said = tidegate("metrics")
    assert said.code == 3
    found = parsed(said.out)
    assert {name for name, labels in found if labels[0] == ("pipeline", "torn")} == {"readable"}
    assert [found["readable", (("pipeline", name),)] for name in ("orders", "torn")] == [1, 0]
    assert "torn/pipeline.json" in said.err
    assert torn.identity() is not None


def test_every_metric_of_the_dashboard_exists_and_every_metric_is_on_it(folder, tidegate):
    said = tidegate("metrics", "--grafana")
    dashboard = json.loads(said.out)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    queries += [each["expr"] for each in dashboard["annotations"]["list"]]
    named = {name for query in queries for name in re.findall(r"tidegate_(\w+)", query)}
    assert named <= set(METRICS)
    assert set(METRICS) - named == {"currentInputWatermark", "unpublishedCheckpoints"}


def test_the_dashboard_names_no_host_and_fits(folder, tidegate):
    text = tidegate("metrics", "--grafana").out
    assert "://" not in text
    panels = json.loads(text)["panels"]
    sources = [each["datasource"] for panel in panels for each in (panel, *panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_panel_says_what_its_lines_are(folder, tidegate):
    """Grafana hides a legend that does not say that it is shown."""
    panels = json.loads(tidegate("metrics", "--grafana").out)["panels"]
    lines = [panel["options"] for panel in panels if panel["type"] == "timeseries"]
    assert len(lines) > 10
    assert all(options["legend"]["showLegend"] for options in lines)


def test_the_alerts_are_about_metrics_that_exist(folder, tidegate):
    rules = tidegate("metrics", "--alerts").out
    named = set(re.findall(r"tidegate_(\w+)", rules))
    assert named <= set(METRICS)
    assert named >= {"needsAttention", "readable", "lastCheckpointCompletedTimestamp"}
