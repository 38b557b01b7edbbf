"""What the ledger asks of storage, asked of every store there is; and what only a local disk can do to us."""

import errno
import os
import stat
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from tests.contract.broken_disk import BrokenDisk, Crash
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.ledger import Ledger
from tidegate.ledger.object_store import ObjectStore
from tidegate.ledger.store import LocalStore
from tidegate.records.records import Decision

STORES = ("local folder", "object store in memory")


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    """An empty store of each kind."""
    if request.param == "local folder":
        return LocalStore(tmp_path / "root")
    return ObjectStore("memory:///ledger", {}, MemoryStore())


@pytest.fixture
def local(tmp_path):
    return LocalStore(tmp_path / "root")


def files(folder):
    """Everything below a folder, hidden files too."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


# -- create is create-if-absent --------------------------------------------------------------------------


def test_what_was_created_is_read_whole(store):
    for path, data in {"a.json": b"{}", "checkpoints/00000001/acks/main.json": b"x" * 300_000, "runs/r/1": b""}.items():
        assert store.read(path) is None
        assert store.create(path, data) is True
        assert store.read(path) == data


def test_the_second_create_changes_nothing_and_says_so(store):
    assert store.create("x/decision.json", b"completed")
    assert store.create("x/decision.json", b"aborted") is False
    assert store.create("x/decision.json", b"completed") is False
    assert store.read("x/decision.json") == b"completed"
    assert store.names("x") == ["decision.json"]


def test_of_fifty_threads_one_creates_the_file_and_its_content_is_whole(store):
    def claim(number):
        data = bytes([number]) * 10_000
        return data if store.create("checkpoints/00000001/plan.json", data) else None

    with ThreadPoolExecutor(50) as pool:
        won = [data for data in pool.map(claim, range(50)) if data is not None]
    assert len(won) == 1
    assert store.read("checkpoints/00000001/plan.json") == won[0]
    assert store.names("checkpoints/00000001") == ["plan.json"]


CLAIMANT = """
import sys
from tidegate.ledger.store import LocalStore
store, me = LocalStore(sys.argv[1]), sys.argv[2]
while store.read("go") is None: pass
print(",".join(str(n) for n in range(40) if store.create(f"checkpoints/{n}/plan.json", me.encode() * 5000)))
"""


def test_of_several_processes_one_creates_each_file(local):
    command = [sys.executable, "-c", CLAIMANT, local.root]
    claimants = [subprocess.Popen([*command, str(me)], stdout=subprocess.PIPE, text=True) for me in range(3)]
    local.create("go", b"")
    won = {str(me): claimant.communicate(timeout=60)[0].strip() for me, claimant in enumerate(claimants)}
    winners = {int(n): me for me, numbers in won.items() for n in numbers.split(",") if n}
    assert sum(len(numbers.split(",")) for numbers in won.values() if numbers) == 40
    assert set(winners) == set(range(40))
    for n, me in winners.items():
        assert local.read(f"checkpoints/{n}/plan.json") == me.encode() * 5000


# -- names -----------------------------------------------------------------------------------------------


def test_names_are_sorted_and_begin_behind_the_hint(store):
    for name in ("00000010", "00000002", "00000001"):
        store.create(f"checkpoints/{name}/plan.json", b"x")
        store.create(f"checkpoints/{name}/acks/main.json", b"x")
    assert store.names("checkpoints") == ["00000001", "00000002", "00000010"]
    assert store.names("checkpoints", after="00000002") == ["00000010"]
    assert store.names("checkpoints", after="00000001") == ["00000002", "00000010"]
    assert store.names("checkpoints", before="00000010") == ["00000001", "00000002"]
    assert store.names("checkpoints", after="00000001", before="00000003") == ["00000002"]
    assert store.names("checkpoints", after="00000002", before="00000010") == []
    assert store.names("checkpoints", after="00000010") == []
    assert store.names("checkpoints/00000001") == ["acks", "plan.json"]
    assert store.names("") == ["checkpoints"]


def test_a_folder_that_is_not_there_has_no_names(store):
    assert store.names("") == []
    assert store.names("checkpoints") == []
    assert store.names("runs/nobody", after="00000001") == []


def test_names_that_are_prefixes_of_one_another_do_not_meet(store):
    """Scenario 18: ids 1 and 10, runs a and a1."""
    store.create("runs/a/1", b"")
    store.create("runs/a1/10", b"")
    store.create("checkpoints/00000001/plan.json", b"1")
    store.create("checkpoints/00000010/plan.json", b"10")
    assert store.names("runs/a") == ["1"]
    store.delete("runs/a")
    store.delete("checkpoints/0000000")
    assert store.names("runs") == ["a1"]
    assert store.names("checkpoints") == ["00000001", "00000010"]


# -- delete, replace, age --------------------------------------------------------------------------------


def test_delete_removes_a_file_or_a_folder_and_takes_missing_for_done(store):
    for path in ("e/plan.json", "e/acks/main.json", "e/acks/other.json", "f/plan.json"):
        store.create(path, b"x")
    store.delete("e/plan.json")
    assert store.names("e") == ["acks"]
    store.delete("e")
    store.delete("e")
    store.delete("never/was")
    assert store.read("e/acks/main.json") is None
    assert store.names("e") == []
    assert store.read("f/plan.json") == b"x"
    assert store.create("e/plan.json", b"again")


def test_threads_that_delete_the_same_folder_do_not_stumble_over_each_other(store):
    for turn in range(5):
        for n in range(20):
            store.create(f"e{turn}/{n}/x.json", b"x")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store.delete, [f"e{turn}"] * 8))
        assert store.names(f"e{turn}") == []


def test_a_hint_is_replaced_whole(store):
    store.replace("latest.json", b"1")
    store.replace("latest.json", b"22")
    assert store.read("latest.json") == b"22"
    assert store.names("") == ["latest.json"]


def test_a_hint_written_by_many_at_once_is_one_of_them_whole(store):
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: store.replace("latest.json", bytes([n]) * 5000), range(20)))
    found = store.read("latest.json")
    assert len(found) == 5000
    assert len(set(found)) == 1


def test_age_is_told_by_the_store(store):
    assert store.age("plan.json") is None
    store.create("plan.json", b"x")
    assert -1.0 <= store.age("plan.json") < 60.0
    assert store.names("") == ["plan.json"] or isinstance(store, ObjectStore)
    store.sync("plan.json")


# -- paths stay below the root ---------------------------------------------------------------------------

TRICKS = ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "a/.", "a\0b", "checkpoints/.."]


@pytest.mark.parametrize("path", TRICKS, ids=repr)
def test_a_path_that_could_leave_the_root_is_refused(store, path, tmp_path):
    before = files(tmp_path)
    for call in (
        lambda: store.create(path, b"x"),
        lambda: store.read(path),
        lambda: store.replace(path, b"x"),
        lambda: store.delete(path),
        lambda: store.age(path),
    ):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.reason == "BAD_PATH"
        assert repr(path) in caught.value.what
    if path:
        with pytest.raises(Invalid):
            store.names(path)
    assert files(tmp_path) == before


# -- what only a local disk has --------------------------------------------------------------------------


def test_records_are_private(local, tmp_path):
    before = os.umask(0)
    try:
        local.create("checkpoints/00000001/plan.json", b"x")
        local.replace("latest.json", b"x")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {mode for path, mode in modes.items() if (tmp_path / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (tmp_path / path).is_file()} == {0o600}


def test_files_that_a_crash_left_half_written_are_not_listed(local):
    local.create("e/plan.json", b"x")
    (Path(local.root) / "e" / ".plan.json.0011.tmp").write_bytes(b"half")
    assert local.names("e") == ["plan.json"]
    assert local.read("e/plan.json") == b"x"


@pytest.mark.parametrize("link", ["e", "e/plan.json", "e/acks"])
def test_symbolic_links_below_the_root_are_refused(local, tmp_path, link):
    outside = tmp_path / "outside"
    (outside / "acks").mkdir(parents=True)
    (outside / "plan.json").write_bytes(b"planted")
    at = Path(local.root, link)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(outside / "plan.json" if link.endswith("json") else outside)
    path = {"e": "e/plan.json", "e/plan.json": "e/plan.json", "e/acks": "e/acks/plan.json"}[link]
    for call in (
        lambda: local.read(path),
        lambda: local.create(path, b"x"),
        lambda: local.delete(path),
        lambda: local.replace(path, b"x"),
        lambda: local.age(path),
        lambda: local.sync(path),
    ):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.reason == "SYMLINK"
        assert str(at) in caught.value.what
    assert (outside / "plan.json").read_bytes() == b"planted"


def test_deleting_a_folder_does_not_follow_links_in_it(local, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "rows").write_bytes(b"x")
    local.create("e/plan.json", b"x")
    Path(local.root, "e", "link").symlink_to(tmp_path / "precious")
    local.delete("e")
    assert (tmp_path / "precious" / "rows").read_bytes() == b"x"


def test_the_root_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    assert LocalStore(tmp_path / "root").create("e/x.json", b"x")
    assert files(tmp_path / "disk") == ["e/x.json"]


def test_a_file_where_a_folder_belongs_is_corrupt_not_empty(local):
    local.create("checkpoints", b"")
    for call in (
        lambda: local.names("checkpoints"),
        lambda: local.read("checkpoints/00000001/plan.json"),
        lambda: local.create("checkpoints/00000001/plan.json", b"x"),
    ):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.reason == "NOT_OURS"


def test_a_folder_where_a_file_belongs_is_corrupt(local):
    local.create("e/plan.json/x", b"")
    with pytest.raises(Corrupt) as caught:
        local.read("e/plan.json")
    assert caught.value.reason == "NOT_OURS"


@pytest.mark.parametrize("call", ["open", "listdir", "mkdir", "link"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_no_access_says_so_and_is_not_taken_for_nothing_there(local, call, code, monkeypatch):
    """The tests may run as root, who may read anything: so the system call itself refuses."""
    local.create("checkpoints/00000001/plan.json", b"x")
    with BrokenDisk(monkeypatch).fails(call, code):
        for work in {
            "open": (
                lambda: local.read("checkpoints/00000001/plan.json"),
                lambda: local.sync("checkpoints/00000001"),
            ),
            "listdir": (lambda: local.names("checkpoints"), lambda: local.names("")),
            "mkdir": (lambda: local.create("checkpoints/00000002/plan.json", b"x"),),
            "link": (lambda: local.create("checkpoints/00000001/decision.json", b"x"),),
        }[call]:
            with pytest.raises(Invalid) as caught:
                work()
            assert caught.value.reason == "NO_ACCESS"
            assert local.root in caught.value.what
            assert "owner or mode" in caught.value.help


def test_a_file_system_without_hard_links_says_so(local, tmp_path, monkeypatch):
    for code in (errno.EPERM, errno.EOPNOTSUPP):
        with BrokenDisk(monkeypatch).fails("link", code), pytest.raises(Invalid) as caught:
            local.create("e/plan.json", b"x")
        assert caught.value.reason == "NO_HARD_LINKS"
        assert files(tmp_path) == []


def test_a_path_that_is_too_long_says_so(tmp_path):
    with pytest.raises(Invalid) as caught:
        LocalStore(tmp_path / ("x" * 300)).create("plan.json", b"x")
    assert caught.value.reason == "BAD_PATH"


# -- a disk that fails or loses power at any step --------------------------------------------------------

PLAN = "checkpoints/00000001/plan.json"
STEPS = [
    ("open", 1, "nothing"),
    ("fsync", "file", "nothing"),
    ("link", 1, "nothing"),
    ("fsync", "folder", "landed"),
]


@pytest.mark.parametrize(("call", "which", "then"), STEPS, ids=lambda value: str(value))
@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "DISK_FULL"), (errno.EIO, "STORAGE")])
def test_a_full_or_failing_disk_is_unclear_and_leaves_all_or_nothing(
    local, tmp_path, monkeypatch, call, which, then, code, reason
):
    local.create("checkpoints/00000001/x", b"")  # the folders are there
    before = files(tmp_path)
    disk = BrokenDisk(monkeypatch)
    with disk.fails(call, code, which), pytest.raises(Unavailable) as caught:
        local.create(PLAN, b"whole")
    assert caught.value.reason == reason
    assert PLAN in caught.value.what
    assert caught.value.help
    assert local.read(PLAN) == (b"whole" if then == "landed" else None)
    assert files(tmp_path) == sorted(before + ([f"root/{PLAN}"] if then == "landed" else [])), "no litter"
    assert local.create(PLAN, b"second") is (then == "nothing")


def test_a_folder_that_cannot_be_synced_for_lack_of_rights_is_unclear_too(local, monkeypatch):
    """It has landed: "Invalid, nothing was written" would be a lie."""
    local.create("checkpoints/00000001/x", b"")
    with BrokenDisk(monkeypatch).fails("fsync", errno.EACCES, "folder"), pytest.raises(Unavailable):
        local.create(PLAN, b"whole")
    assert local.read(PLAN) == b"whole"


def test_a_process_that_dies_at_any_step_leaves_the_whole_record_or_none(tmp_path, monkeypatch):
    """Killed before each system call in turn; then somebody else comes."""
    outcomes = Counter()
    for step in range(1, 100):
        local = LocalStore(tmp_path / str(step))
        disk = BrokenDisk(monkeypatch)
        with disk.dies_before(step):
            try:
                local.create(PLAN, b"first" * 1000)
            except Crash:
                pass
            else:
                break
        found = local.read(PLAN)
        assert found in (None, b"first" * 1000)
        assert local.names("checkpoints/00000001") in ([], ["plan.json"])
        assert local.create(PLAN, b"second") is (found is None)
        assert local.read(PLAN) == (found or b"second")
        outcomes["landed" if found else "nothing"] += 1
    assert outcomes["nothing"] >= 8, "folders, file and link: each a step"
    assert outcomes["landed"] >= 2, "unlink of the temporary name, fsync of the folder"


def test_a_hint_that_could_not_be_replaced_is_the_old_one(local, tmp_path, monkeypatch):
    local.replace("latest.json", b"old")
    for call, which in (("fsync", "file"), ("replace", 1)):
        with BrokenDisk(monkeypatch).fails(call, errno.ENOSPC, which), pytest.raises(Unavailable):
            local.replace("latest.json", b"new")
        assert local.read("latest.json") == b"old"
        assert files(tmp_path) == ["root/latest.json"]


def test_a_record_is_durable_before_create_answers(local, monkeypatch):
    """Content first, then the name: each is synced, in this order, and each new folder in its parent."""
    disk = BrokenDisk(monkeypatch)
    with disk.watched():
        local.create(PLAN, b"x")
    root = Path(local.root)
    synced = [call for call in disk.calls if call[0] in ("fsync", "link")]
    names = [(what, str(path.relative_to(root.parent)) if path else "") for what, path in synced]
    folders = [("fsync", "."), ("fsync", "root"), ("fsync", "root/checkpoints")]
    assert names[:3] == folders
    assert [what for what, _ in names[3:]] == ["fsync", "link", "fsync"]
    assert "/.plan.json." in names[3][1]
    assert names[5] == ("fsync", "root/checkpoints/00000001")


def test_settle_syncs_the_file_and_its_folder(local, monkeypatch):
    local.create(PLAN, b"x")
    disk = BrokenDisk(monkeypatch)
    with disk.watched():
        local.sync(PLAN)
    assert [str(path.relative_to(local.root)) for what, path in disk.calls if what == "fsync"] == [
        PLAN,
        "checkpoints/00000001",
    ]


# -- scenario 20 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_scenario_20_a_decision_whose_fsync_failed_but_which_landed_is_neither_failed_nor_rolled_back(
    local, monkeypatch, code
):
    ledger = Ledger(local, "orders")
    local.create("checkpoints/00000001/plan.json", b"x")
    decision = Decision(attempt="me", created="now", id=1, outcome="completed", manifest="ab" * 32)
    with BrokenDisk(monkeypatch).fails("fsync", code, "folder", times=1):
        made = ledger.create_decision(decision)
    assert made.is_new
    assert made.record == decision
    abort = Decision(attempt="other", created="now", id=1, outcome="aborted", reason="LOOKED_FAILED")
    late = ledger.create_decision(abort)
    assert not late.is_new
    assert late.record == decision == ledger.decision(1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_scenario_20_as_long_as_the_fsync_fails_the_outcome_is_unclear_and_nobody_acts_on_it(local, monkeypatch, code):
    ledger = Ledger(local, "orders")
    local.create("checkpoints/00000001/plan.json", b"x")
    decision = Decision(attempt="me", created="now", id=1, outcome="completed", manifest="ab" * 32)
    with BrokenDisk(monkeypatch).fails("fsync", code, "folder"):
        with pytest.raises(Unavailable):
            ledger.create_decision(decision)
        with pytest.raises(Unavailable):
            ledger.sync_decision(1)
    assert ledger.create_decision(Decision(attempt="x", created="now", id=1, outcome="aborted")).record == decision


def test_scenario_20_a_decision_that_really_did_not_land_is_unclear_and_can_be_made_again(local, monkeypatch):
    ledger = Ledger(local, "orders")
    local.create("checkpoints/00000001/plan.json", b"x")
    decision = Decision(attempt="me", created="now", id=1, outcome="completed", manifest="ab" * 32)
    with BrokenDisk(monkeypatch).fails("fsync", errno.ENOSPC, "file"), pytest.raises(Unavailable) as caught:
        ledger.create_decision(decision)
    assert caught.value.reason == "DISK_FULL"
    assert ledger.decision(1) is None
    assert ledger.create_decision(decision).is_new


# -- object stores that refuse ---------------------------------------------------------------------------


class Refusing:
    """A client whose every call fails in one way."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        def call(*args, **kwargs):
            raise self.error

        return call


REFUSALS = [
    (PermissionDeniedError("403 hunter2-canary"), Invalid, "NO_ACCESS"),
    (FileNotFoundError("404 no such bucket"), Invalid, "NO_BUCKET"),
    (GenericError("list: 404 Not Found: <xml>\n<Code>NoSuchBucket</Code>"), Invalid, "NO_BUCKET"),
    (GenericError("list: 403 Forbidden: <Code>InvalidAccessKeyId</Code>"), Invalid, "NO_ACCESS"),
    (GenericError("list: 400 Bad Request: <Code>ExpiredToken</Code>"), Unavailable, "STORAGE"),
    (GenericError("503 slow down"), Unavailable, "STORAGE"),
    (OSError("connection reset"), Unavailable, "STORAGE"),
]


@pytest.mark.parametrize(("error", "kind", "reason"), REFUSALS)
def test_an_object_store_that_refuses_says_why_and_never_shows_options(error, kind, reason):
    store = ObjectStore("s3://bucket/root", {"aws_secret_access_key": "hunter2-canary"}, Refusing(error))
    for call in (lambda: store.create("x", b""), lambda: store.names("e"), lambda: store.replace("x", b"")):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.reason == reason
        assert caught.value.help
        assert "s3://bucket/root" in caught.value.what
        assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [("foo://bucket/x", {}), ("s3://", {}), ("s3://b x/y", {}), ("s3://bucket/x", {"bogus": "hunter2-canary"})],
)
def test_an_object_store_that_cannot_be_opened_says_why_and_never_shows_options(url, options):
    with pytest.raises(Invalid) as caught:
        ObjectStore(url, options).read("x")
    assert caught.value.reason == "BAD_STORE"
    assert f"cannot open {url.rstrip('/')}" in caught.value.what
    assert "hunter2" not in str(caught.value)
