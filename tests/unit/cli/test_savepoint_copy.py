"""savepoint create --copy: a folder with all that it takes to continue anywhere, which says what it lacks."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from tests.kit import forks
from tests.kit.forks import Died, Run, contents, dying, refused
from tidegate.delta import Location

shop = forks.shop
COPY = ("savepoint", "create", "orders", "good", "--checkpoint", "2", "--copy", "copies/good")


def from_folder(folder, *more):
    return ("fork", str(folder), "--as", "shop:trial", *more)


@pytest.fixture
def copy(shop, folder, tidegate):
    """A savepoint of the second of three checkpoints, in a folder."""
    said = tidegate(*COPY, "--json")
    assert said.code == 0, said.err
    assert said.json["checkpoint"] == 2
    return folder / "copies" / "good"


def test_it_is_whole_wherever_it_is_moved_to_and_needs_nothing_else(copy, shop, folder, tidegate):
    moved = folder / "elsewhere" / "kept"
    moved.parent.mkdir()
    copy.rename(moved)
    (folder / "ledger" / "orders").rename(folder / "gone")
    (folder / "tables").rename(folder / "gone-tables")
    told = tidegate("savepoint", "verify", str(moved), "--json").json
    assert (told["complete"], told["pipeline"], told["name"], told["checkpoint"]) == (True, "orders", "good", 2)
    before = contents(moved)
    assert tidegate(*from_folder(moved, "--note", "from the copy")).code == 0
    trial = Run("trial")
    assert (trial.checkpoint(), trial.good(), trial.remembered()) == (3, [3], [1, 2, 3])
    assert "from the copy" in " ".join(tidegate("explain", "trial", "2").out.split())
    assert contents(moved) == before, "who does not claim it leaves it alone"
    assert tidegate("fork", str(moved), "--as", "shop:other").code == 0, "so others may begin with it, too"


def test_every_file_is_told_by_its_hash(copy, tidegate):
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.name != "savepoint.json")
    assert len(files) > 8
    for path in files:
        kept, name = path.read_bytes(), str(path.relative_to(copy))
        path.chmod(0o600)
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        said = tidegate("savepoint", "verify", str(copy), "--json")
        assert said.code == 1
        assert any(name in problem for problem in said.json["problems"]), name
        path.unlink()
        assert any(name in problem for problem in tidegate("savepoint", "verify", str(copy), "--json").json["problems"])
        assert tidegate(*from_folder(copy)).code != 0
        path.write_bytes(kept)
    assert not (copy.parent.parent / "ledger" / "trial").exists()
    assert tidegate("savepoint", "verify", str(copy)).code == 0


def test_who_claims_it_owns_it_and_it_is_removed_once_it_is_no_longer_needed(copy, folder, tidegate, monkeypatch):
    shutil.copytree(copy, folder / "second")
    assert tidegate(*from_folder(copy, "--claim")).code == 0
    assert not copy.exists()
    assert Run("trial").checkpoint() == 3

    real = Location.remove_files

    def half(self, paths):
        if self.url.endswith("second"):
            real(self, list(paths)[:4])
            raise Died
        real(self, paths)

    second = str(folder / "second")
    with monkeypatch.context() as patched:
        patched.setattr(Location, "remove_files", half)
        with pytest.raises(Died):
            tidegate("fork", second, "--as", "shop:other", "--claim")
    assert Run("other").checkpoint() == 3, "it is there already"
    assert refused(tidegate, "fork", second, "--as", "shop:trial")["reason"] == "CLAIMED"
    assert tidegate("fork", second, "--as", "shop:other", "--claim").code == 0
    assert not (folder / "second").exists()


def test_what_one_has_claimed_no_other_takes(copy, folder, tidegate, monkeypatch):
    with monkeypatch.context() as patched:
        dying(patched, 4, landed=False)
        with pytest.raises(Died):
            tidegate(*from_folder(copy, "--claim"))
    assert (copy / "claimed.json").exists()
    for more in ((), ("--claim",)):
        assert refused(tidegate, "fork", str(copy), "--as", "shop:other", *more)["reason"] == "CLAIMED"
    assert tidegate(*from_folder(copy, "--claim")).code == 0
    assert (copy.exists(), Run("trial").checkpoint()) == (False, 3)


@pytest.mark.parametrize("landed", [False, True])
def test_wherever_copying_is_broken_off_the_same_command_continues(shop, folder, tidegate, monkeypatch, landed):
    nth, target = 1, folder / "copies" / "good"
    while True:
        with monkeypatch.context() as patched:
            dying(patched, nth, landed)
            try:
                assert tidegate(*COPY).code == 0
                break
            except Died:
                pass
        if not (target / "savepoint.json").exists():
            assert refused(tidegate, *from_folder(target))["reason"] == "NO_SUCH_SAVEPOINT"
        if shop.ledger.pins():
            Run("orders", num_retained="1").coordinator.retire()
            assert shop.ledger.entry(2) is not None, "it is spared until it is copied"
        assert tidegate(*COPY).code == 0
        assert tidegate("savepoint", "verify", str(target)).code == 0
        shutil.rmtree(target)
        assert shop.ledger.pins() == []
        nth += 1
    assert nth > 10


def test_what_an_earlier_try_has_left_is_not_written_over_if_it_is_something_else(shop, folder, tidegate, monkeypatch):
    with monkeypatch.context() as patched:
        dying(patched, 4, landed=True)
        with contextlib.suppress(Died):
            tidegate(*COPY)
    left = sorted(path for path in (folder / "copies" / "good").rglob("*") if path.is_file())
    left[0].write_bytes(left[0].read_bytes() + b" ")
    error = refused(tidegate, *COPY)
    assert error["reason"] == "NOT_EMPTY"
    assert "differs" in error["message"]
    assert left[0].read_bytes().endswith(b" ")


def test_retention_that_comes_while_it_is_copied_spares_it(shop, folder, tidegate, monkeypatch):
    from tidegate.lifecycle import copies

    real, slow, seen = copies._put, Run("orders", num_retained="1").coordinator, []

    def put(*args):
        slow.retire()
        seen.append(shop.ledger.entry(2) is not None)
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(copies, "_put", put)
        assert tidegate(*COPY).code == 0
    assert len(seen) > 3
    assert all(seen)
    assert tidegate("savepoint", "verify", str(folder / "copies" / "good")).code == 0
    slow.retire()
    assert shop.ledger.entry(2) is None, "and not for ever"


def test_where_something_else_lies_nothing_is_copied(copy, shop, folder, tidegate):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("x")
    for name, number, target in (("good", "2", "mine"), ("good", "3", "copies/good"), ("best", "2", "copies/good")):
        said = ("savepoint", "create", "orders", name, "--checkpoint", number, "--copy", target)
        assert refused(tidegate, *said)["reason"] == "NOT_EMPTY"
    assert tidegate(*COPY).code == 0, "again: it is done"
    gone = shop.state_table.local(shop.state(3).files[2].file.path)
    gone.unlink()
    damaged = ("savepoint", "create", "orders", "new", "--checkpoint", "3", "--copy", "new")
    assert refused(tidegate, *damaged)["reason"] == "CHECKPOINT_DAMAGED"
    assert list((folder / "new").iterdir()) == []
    assert refused(tidegate, "savepoint", "verify", "./nowhere")["reason"] == "NO_SUCH_SAVEPOINT"
    assert refused(tidegate, *from_folder(copy, "--from", "2"))["reason"] == "BAD_CHOICE"
    assert refused(tidegate, *forks.FORK, "--claim")["reason"] == "BAD_CHOICE"
    assert not (folder / "nowhere").exists()
    assert shop.ledger.pins() == []
