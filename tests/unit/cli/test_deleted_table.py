"""Somebody deletes a sink's table by hand: every door names that as the cause, and the remedy that they name works."""

from __future__ import annotations

import shutil

import pytest

from tests.kit.forks import CODE, Compacting
from tidegate.errors import Corrupt

LEAVE = "tidegate rollback MODULE:PIPELINE --to 3 --leave good"


@pytest.fixture
def shop(folder, monkeypatch, tidegate):
    """Three checkpoints of a pipeline, after which its table is deleted."""
    (folder / "shop.py").write_text(CODE)
    run = Compacting("orders")
    for _ in range(3):
        run.checkpoint()
    return run


def deleted(folder):
    shutil.rmtree(folder / "tables" / "good")


def test_the_next_run_says_that_it_is_gone_and_what_brings_it_back(shop, folder):
    deleted(folder)
    with pytest.raises(Corrupt) as refused:
        shop.checkpoint()
    assert refused.value.reason == "TABLE_GONE"
    assert f"table 'good', {folder}/tables/good, is missing: checkpoint 3 was published there" in refused.value.what
    assert LEAVE in refused.value.help


def test_deleted_before_its_rows_were_published_it_is_the_table_that_is_gone_and_not_the_rows(shop, folder):
    """They were staged in it. A VACUUM has nothing to do with that, and no older checkpoint has a table."""
    id = shop.acked()
    deleted(folder)
    assert shop.coordinator.complete(id).state == "completed"
    with pytest.raises(Corrupt) as refused:
        shop.coordinator.publish()
    assert refused.value.reason == "TABLE_GONE"
    assert f"--to {id} --leave good" in refused.value.help
    assert "VACUUM" not in str(refused.value)


def test_doctor_and_a_rollback_say_the_same(shop, folder, tidegate):
    deleted(folder)
    doctor = tidegate("doctor", "shop:orders")
    assert doctor.code == 1
    assert "tables/good, is missing: checkpoint 3 was published there" in doctor.out
    assert LEAVE in doctor.out
    for target in ("2", "3"):
        said = tidegate("rollback", "shop:orders", "--to", target, "--dry-run")
        assert said.code == 1
        assert "Not possible: table 'good'" in said.out
        assert LEAVE in said.out


def test_what_they_say_lets_it_begin_anew(shop, folder, tidegate):
    deleted(folder)
    said = tidegate("rollback", "shop:orders", *LEAVE.split()[3:], "--yes")
    assert said.code == 0, said.err
    again = Compacting("orders")
    assert again.checkpoint() == 5
    assert again.good() == [5]


def test_put_back_from_a_copy_it_continues_as_if_nothing_had_happened(shop, folder):
    shutil.copytree(folder / "tables", folder / "copy")
    deleted(folder)
    with pytest.raises(Corrupt):
        shop.checkpoint()
    shutil.copytree(folder / "copy", folder / "tables", dirs_exist_ok=True)
    again = Compacting("orders")
    assert again.checkpoint() == 4
    assert again.good() == [1, 2, 3, 4]


def test_a_state_that_is_gone_is_not_let_go_of(shop, folder):
    shutil.rmtree(folder / "tidegate-data" / "ledger" / "orders" / "state" / "totals", ignore_errors=True)
    shutil.rmtree(shop.state_table.url, ignore_errors=True)
    with pytest.raises(Corrupt) as refused:
        shop.checkpoint()
    assert refused.value.reason == "TABLE_GONE"
    assert "--leave" not in refused.value.help
