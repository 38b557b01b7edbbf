"""The site is lost. What was copied elsewhere continues there: the same pipeline, its positions, states and tables."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.kit.forks import CODE, Compacting, Died, dying, refused
from tidegate import seams
from tidegate.errors import Corrupt

THERE = CODE.replace('/good"))', '/good", take_over=True))').replace('keys=["k"])', 'keys=["k"], take_over=True)')
FORK = ("fork", "./backup", "--as", "shop:orders")


class Sites:
    """The site that is lost, and the one where it continues: folders with code, ledger and tables of their own."""

    def __init__(self, folder, monkeypatch, tidegate):
        self.folder, self.monkeypatch, self.tidegate = folder, monkeypatch, tidegate
        self.here, self.there = folder / "here", folder / "there"
        for site in (self.here, self.there):
            site.mkdir()
            (site / "tidegate.toml").write_text('root = "ledger"\n')
        (self.here / "shop.py").write_text(CODE)
        (self.there / "shop.py").write_text(THERE)

    def at(self, site):
        self.monkeypatch.chdir(site)
        sys.modules.pop("shop", None)
        sys.path[:] = [each for each in sys.path if each not in (str(self.here), str(self.there))]
        return Compacting("orders")

    def save(self, checkpoint=3):
        """A savepoint and the tables, as copies at the other site."""
        said = self.tidegate(
            *("savepoint", "create", "orders", "drill", "--checkpoint", str(checkpoint)),
            *("--copy", str(self.there / "backup"), "--json"),
        )
        assert said.code == 0, said.err
        shutil.copytree(self.here / "tables", self.there / "tables")

    def lose(self):
        self.monkeypatch.chdir(self.there)
        self.here.rename(self.folder / "lost")
        (self.folder / "lost").chmod(0)


@pytest.fixture
def sites(folder, monkeypatch, tidegate):
    """Three checkpoints here, saved there."""
    sites = Sites(folder, monkeypatch, tidegate)
    run = sites.at(sites.here)
    for _ in range(3):
        run.checkpoint()
    sites.save()
    yield sites
    if (folder / "lost").exists():
        (folder / "lost").chmod(0o700)


def test_the_first_checkpoint_elsewhere_continues_everything(sites, tidegate, record_property):
    sites.lose()
    began = seams.monotonic()
    run = sites.at(sites.there)
    said = tidegate(*FORK, "--json")
    assert said.code == 0, said.err
    assert said.json["continued_tables"] == {"good": str(sites.there / "tables" / "good")}
    assert run.checkpoint() == 4
    record_property("seconds_to_the_first_checkpoint", round(seams.monotonic() - began, 2))
    assert (run.good(), run.remembered()) == ([1, 2, 3, 4], [1, 2, 3, 4])
    findings = tidegate("doctor", "shop:orders", "--json").json["findings"]
    assert [found for found in findings if found["state"] == "bad"] == []
    assert run.checkpoint() == 5
    rolled = tidegate("rollback", "shop:orders", "--to", "3", "--yes", "--json")
    assert rolled.code == 0, rolled.err
    assert (run.good(), run.remembered()) == ([1, 2, 3], [1, 2, 3]), "the rows that were taken over stay"
    assert run.checkpoint() > 5


def test_a_table_that_was_copied_later_or_not_at_all_is_refused_before_anything_is_written(sites, tidegate):
    run = sites.at(sites.here)
    run.checkpoint()
    shutil.rmtree(sites.there / "tables")
    shutil.copytree(sites.here / "tables", sites.there / "tables")
    sites.lose()
    sites.at(sites.there)
    told = refused(tidegate, *FORK)
    assert told["reason"] == "TABLE_NOT_AS_OF"
    assert "holds checkpoint 4" in told["message"]
    shutil.rmtree(sites.there / "tables")
    assert "does not exist" in refused(tidegate, *FORK)["message"]
    assert not (sites.there / "ledger" / "orders").exists()


def test_a_table_that_was_copied_later_is_cut_back_as_the_refusal_says(sites, tidegate):
    run = sites.at(sites.here)
    version = tidegate("show", "orders", "3", "--json").json["tables"]["good"]["version"]
    run.checkpoint()
    shutil.rmtree(sites.there / "tables")
    shutil.copytree(sites.here / "tables", sites.there / "tables")
    for commit in (sites.there / "tables" / "good" / "_delta_log").glob("*.json"):
        if int(commit.stem) > version:
            commit.unlink()
    sites.lose()
    run = sites.at(sites.there)
    assert tidegate(*FORK).code == 0
    assert (run.checkpoint(), run.good()) == (4, [1, 2, 3, 4])


def test_a_table_of_a_pipeline_that_is_still_there_is_not_taken_over(sites, tidegate):
    """The other site has the same disk, and its code names the same tables."""
    run = sites.at(sites.there)
    (sites.there / "shop.py").write_text(THERE.replace('"tables"', f'"{sites.here}/tables"'))
    run = sites.at(sites.there)
    assert refused(tidegate, *FORK)["reason"] == "NOT_ITS_OWN_TABLE"
    assert run.ledger.identity_or_none() is None
    shutil.rmtree(sites.here / "ledger")
    assert tidegate(*FORK).code == 0, "once its ledger is gone, nobody else continues it"
    assert (run.checkpoint(), run.good()) == (4, [1, 2, 3, 4])


@pytest.mark.parametrize("behind", ["ledger", "tables"])
def test_a_replica_whose_parts_are_of_different_moments_is_refused(sites, tidegate, behind):
    shutil.rmtree(sites.there / "tables")
    run = sites.at(sites.here)
    first, second = (behind, "tables" if behind == "ledger" else "ledger")
    shutil.copytree(sites.here / first, sites.there / first)
    run.checkpoint()
    shutil.copytree(sites.here / second, sites.there / second)
    sites.lose()
    run = sites.at(sites.there)
    with pytest.raises(Corrupt) as caught:
        run.checkpoint()
    assert caught.value.reason == "TABLE_DAMAGED"


def test_without_take_over_tables_with_rows_are_refused(sites, tidegate):
    (sites.there / "shop.py").write_text(CODE)
    sites.lose()
    sites.at(sites.there)
    said = refused(tidegate, *FORK)
    assert said["reason"] == "NOT_ITS_OWN_TABLE"
    assert "declare the sinks with take_over=True" in said["help"]


@pytest.mark.parametrize("landed", [False, True])
def test_wherever_it_is_broken_off_the_same_command_continues(sites, tidegate, monkeypatch, landed):
    sites.lose()
    for number in range(1, 40):
        run = sites.at(sites.there)
        with monkeypatch.context() as patched:
            dying(patched, number, landed)
            try:
                code = tidegate(*FORK).code
            except Died:
                code = None
        if code == 0:
            break
    assert code == 0
    assert (run.checkpoint(), run.good(), run.remembered()) == (4, [1, 2, 3, 4], [1, 2, 3, 4])


def test_what_the_lost_site_wrote_later_counts_for_nothing_there(sites, tidegate):
    """It comes back: it has its own ledger and its own tables, and the others continue without it."""
    run = sites.at(sites.there)
    assert tidegate(*FORK).code == 0
    assert run.checkpoint() == 4
    old = sites.at(sites.here)
    assert (old.checkpoint(), old.good()) == (4, [1, 2, 3, 4])
    assert sites.at(sites.there).good() == [1, 2, 3, 4]
