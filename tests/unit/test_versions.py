"""The versions that tidegate supports are told once, and what an older one lacks behaves as the newest has it."""

import re
from datetime import datetime
from pathlib import Path

import pytest
import tomllib

from tidegate.spark.jars import jar_list
from tidegate.versions.python import _parse_time, parse_time
from tidegate.versions.ranges import PYTHON, RANGES, RANGES_BY_PACKAGE, installed_version
from tools import matrix_versions
from tools.matrix_parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_asks_for_the_same_ranges():
    asked = {}
    for extra, requirements in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        for requirement in requirements:
            name, specifier = re.match(r"([\w-]+)(?:\[[^]]*\])?([^;]*)", requirement).groups()
            asked[name] = specifier.strip(), extra
    assert {each.package: (each.text, each.extra) for each in RANGES}.items() <= asked.items()
    assert PROJECT["requires-python"] == PYTHON.text


def test_the_locked_versions_are_of_these_ranges():
    locked = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert [each.package for each in RANGES if locked[each.package] not in each] == []


def test_the_package_and_the_jar_of_delta_spark_are_of_one_version():
    (version,) = {jar.version for jar in jar_list() if jar.name.startswith("delta-spark")}
    assert version in RANGES_BY_PACKAGE["delta-spark"]


def test_a_corner_that_is_run_by_itself_replaces_its_row_and_no_other(tmp_path, monkeypatch):
    page = tmp_path / "versions.md"
    page.write_text(matrix_versions.PAGE.read_text())
    monkeypatch.setattr(matrix_versions, "PAGE", page)
    before = page.read_text().splitlines()
    first, *_ = matrix_versions.CORNERS
    versions = {"apache-airflow": f"{first.airflow}.99", "pyspark": f"{first.spark}.99"}
    matrix_versions.write_page([matrix_versions.Result(first, versions, failed="test: exit code 1")])
    new = set(page.read_text().splitlines()) - set(before)
    assert len(page.read_text().splitlines()) == len(before)
    (row,) = new
    assert re.fullmatch(
        rf"\| {first.python} \| {first.airflow}\.99 \| {first.spark}\.99 \|  \| fails at test, \S+ \|", row
    )


def test_each_optional_part_is_installed_alone_and_all_at_each_corner():
    parts = set(PROJECT["optional-dependencies"]) - {"all"}
    assert set(PARTS) == parts
    assert set(matrix_versions.EVERYTHING.split(",")) == parts


@pytest.mark.parametrize(
    ("version", "is_in"), [("2.11.0", False), ("3.0.0", True), ("3.3.9", True), ("3.4.0", False), ("3.3.0rc1", True)]
)
def test_a_range_ends_before_its_end(version, is_in):
    assert (version in RANGES_BY_PACKAGE["apache-airflow"]) is is_in


def test_what_is_not_installed_has_no_version():
    assert installed_version("no-such-package-of-mine") is None


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01",
        "2026-01-01T10",
        "2026-01-01 10:20",
        "2026-01-01T10:20:30Z",
        "2026-01-01T10:20:30.5+00:00",
        "2026-01-01T10:20:30.123456-05:30",
        "2026-01-01T10:20:30.1234567+0100",
        "2026-01-01T10:20+01",
    ],
)
def test_times_are_read_on_the_oldest_python_as_on_the_newest(text):
    assert _parse_time(text) == parse_time(text) == datetime.fromisoformat(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-01-01T25:00", "2026-01-01Z"])
def test_what_is_no_time_is_none_on_either(text):
    for parse in (_parse_time, parse_time):
        with pytest.raises(ValueError, match=r"\S"):
            parse(text)
