"""The ledger: identity, records that are read back, and a log in which nothing is missing unnoticed."""

import json
import shutil

import pytest

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.ledger import Ledger, LocalStore, open_ledger
from tidegate.ledger.object_store import ObjectStore
from tidegate.records.codec import INLINE_LIMIT, RECORD_LIMIT, encode, encode_json, sha256
from tidegate.records.records import (
    Ack,
    Blob,
    Decision,
    JobStats,
    LatestHint,
    Manifest,
    Payload,
    PipelineRecord,
    Plan,
    Published,
    Range,
    Retired,
)

WHO = {"attempt": "x", "created": "now"}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(LocalStore(tmp_path / "orders"), "orders")


def plan(id, run="run", attempt="x", base=-1, **changed):
    fields = {
        "attempt": attempt,
        "created": "now",
        "id": id,
        "kind": "manual",
        "run": run,
        "base": (id - 1 or None) if base == -1 else base,
        "sources": {},
        "triggers": [],
        "acks": ["main"],
        "commits": [],
        "timeout_s": 600.0,
        "config": {},
        "config_fingerprint": "",
        "code_fingerprint": "",
    }
    return Plan(**fields | changed)


def ack(id, attempt="x"):
    return Ack(attempt=attempt, created="now", id=id, job="main", prev=None, sinks={}, stats=JobStats())


def manifest(id):
    return Manifest(**WHO, id=id, base=None, base_manifest=None, positions={}, jobs={}, tables={})


def complete(ledger, id, *, published=True):
    """A whole entry, as a run leaves it behind."""
    ledger.create_entry(plan(id, run=f"run{id}"))
    ledger.index_run(plan(id, run=f"run{id}"))
    ledger.create_ack(ack(id))
    sha = ledger.create_manifest(manifest(id))
    ledger.create_decision(Decision(**WHO, id=id, outcome="completed", manifest=sha))
    if published:
        ledger.create_published(Published(**WHO, id=id, tables={}))


def history(ledger, last, *, hint=True):
    ledger.start()
    for id in range(1, last + 1):
        complete(ledger, id)
    if hint:
        ledger.hint(LatestHint(**WHO, id=last))
    return ledger


def tree(ledger):
    return {path: path.is_file() and path.read_bytes() for path in ledger.store._root.rglob("*")}


# -- opening ---------------------------------------------------------------------------------------------


def test_a_root_is_a_folder_or_a_url(tmp_path):
    assert open_ledger(str(tmp_path), "a").store.root == f"{tmp_path}/a"
    assert open_ledger(f"file://{tmp_path}", "a").store.root == f"{tmp_path}/a"
    store = open_ledger("s3://bucket/root/", "a", {"aws_region": "x"}).store
    assert isinstance(store, ObjectStore)
    assert store.root == "s3://bucket/root/a"


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", ".", "a" * 64, None])
def test_a_bad_pipeline_name_opens_nothing(tmp_path, name):
    with pytest.raises(Invalid) as caught:
        open_ledger(str(tmp_path), name)
    assert caught.value.reason == "BAD_NAME"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["", " ", "a\0b", "a\nb", "file://host/x", None, 3])
def test_a_bad_root_opens_nothing(root):
    with pytest.raises(Invalid) as caught:
        open_ledger(root, "orders")
    assert caught.value.reason == "BAD_PATH"
    assert repr(root) in caught.value.what


def test_opening_and_looking_writes_nothing(ledger, tmp_path):
    assert ledger.identity() is None
    assert ledger.view("run").entries == ()
    assert ledger.entry(1) is None
    assert list(tmp_path.iterdir()) == []


# -- identity --------------------------------------------------------------------------------------------


def test_a_pipeline_gets_its_uid_once(ledger):
    uid = ledger.start().uid
    assert ledger.start().uid == uid == ledger.identity().uid
    other = Ledger(ledger.store, "orders")
    assert other.start().uid == uid


def test_a_started_pipeline_whose_identity_is_missing_is_damage_not_a_fresh_start(ledger):
    """Scenario 15."""
    history(ledger, 2)
    ledger.store.delete("pipeline.json")
    for call in (ledger.identity, ledger.start):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.reason == "LEDGER_DAMAGED"
        assert "pipeline.json is missing, but checkpoints, latest.json, runs next to it is not" in caught.value.what
        assert "move the whole folder away" in caught.value.help
    assert ledger.store.read("pipeline.json") is None


def test_a_ledger_under_another_name_is_refused(ledger):
    ledger.start()
    with pytest.raises(Corrupt, match="belongs to pipeline 'orders'"):
        Ledger(ledger.store, "copy").start()


def test_whoever_starts_while_another_does_agrees_with_it(ledger, monkeypatch):
    """Between "there is no pipeline.json" and the listing, the other has made it."""
    other = Ledger(LocalStore(ledger.store.root), "orders")
    names = LocalStore.names

    def names_late(self, folder, after=""):
        monkeypatch.setattr(LocalStore, "names", names)
        other.start()
        return names(self, folder, after)

    monkeypatch.setattr(LocalStore, "names", names_late)
    assert ledger.start().uid == other.identity().uid


# -- creates are settled by reading back (W1) ------------------------------------------------------------

CREATES = {
    "entry": (lambda ledger, who: ledger.create_entry(plan(1, attempt=who)), "checkpoints/00000001/plan.json"),
    "ack": (lambda ledger, who: ledger.create_ack(ack(1, attempt=who)), "checkpoints/00000001/acks/main.json"),
    "decision": (
        lambda ledger, who: ledger.create_decision(Decision(attempt=who, created="now", id=1, outcome="aborted")),
        "checkpoints/00000001/decision.json",
    ),
}
EACH = pytest.mark.parametrize("create", CREATES.values(), ids=CREATES)


class Unclear(LocalStore):
    """Answers to creates are lost: after landing, before landing, or landed and then told "exists"."""

    mode = ""

    def create(self, path, data):
        if self.mode == "lost":
            raise Unavailable("no answer")
        made = super().create(path, data)
        if self.mode == "landed":
            raise Unavailable("no answer")
        return made and self.mode != "repeated"


@pytest.fixture
def unclear(tmp_path):
    return Ledger(Unclear(tmp_path / "orders"), "orders")


@EACH
def test_the_first_record_stays_and_everybody_gets_it(ledger, create):
    do, path = create
    first, second = do(ledger, "first"), do(ledger, "second")
    assert (first.is_new, second.is_new) == (True, False)
    assert second.record == first.record
    assert first.sha == second.sha == sha256(ledger.store.read(path))


@EACH
@pytest.mark.parametrize("mode", ["landed", "repeated"])
def test_an_own_record_is_recognised_when_the_answer_was_lost_or_wrong(unclear, create, mode):
    """An object store's client retries by itself: its second try says "exists" to the winner."""
    do, _ = create
    unclear.store.mode = mode
    assert do(unclear, "me").is_new


@EACH
@pytest.mark.parametrize("mode", ["landed", "repeated"])
def test_another_ones_record_is_not_taken_for_an_own_one(unclear, create, mode):
    do, _ = create
    other = do(unclear, "other").record
    unclear.store.mode = mode
    mine = do(unclear, "me")
    assert not mine.is_new
    assert mine.record == other


@EACH
def test_what_did_not_land_is_said_to_be_unclear(unclear, create):
    do, path = create
    unclear.store.mode = "lost"
    with pytest.raises(Unavailable):
        do(unclear, "me")
    unclear.store.mode = ""
    assert unclear.store.read(path) is None
    assert do(unclear, "me again").is_new


def test_manifests_lie_under_their_own_hash(ledger, unclear):
    sha = ledger.create_manifest(manifest(1))
    assert ledger.create_manifest(manifest(1)) == sha
    assert ledger.store.names("checkpoints/00000001") == [f"manifest-{sha}.json"]
    assert ledger.manifest(1, sha) == manifest(1)
    unclear.store.mode = "landed"
    assert unclear.create_manifest(manifest(1)) == sha


def test_the_run_index_survives_lost_answers(unclear):
    unclear.store.mode = "landed"
    unclear.index_run(plan(1, run="r"))
    unclear.store.mode = "lost"
    unclear.index_run(plan(1, run="r"))
    with pytest.raises(Unavailable):
        unclear.index_run(plan(2, run="r"))
    assert unclear.run_ids("r") == [1]


def test_a_record_that_is_too_large_is_not_written(ledger):
    before = tree(ledger)
    with pytest.raises(Invalid) as caught:
        ledger.create_entry(plan(1, run="x" * RECORD_LIMIT))
    assert caught.value.reason == "RECORD_TOO_LARGE"
    assert tree(ledger) == before


# -- the log ---------------------------------------------------------------------------------------------


def test_the_view_begins_at_the_hint(ledger):
    history(ledger, 5)
    ledger.hint(LatestHint(**WHO, id=3))
    view = ledger.view()
    assert ([entry.id for entry in view.entries], view.settled) == ([3, 4, 5], 3)


def test_what_has_ended_is_read_once_and_what_is_open_each_time(ledger, monkeypatch):
    history(ledger, 5)
    ledger.hint(LatestHint(**WHO, id=4))
    ledger.create_entry(plan(6))
    read, paths = ledger.store.read, []
    monkeypatch.setattr(ledger.store, "read", lambda path: paths.append(path) or read(path))
    before = ledger.view()
    assert {path[:20] for path in paths} == {"latest.json", *(f"checkpoints/{id:08d}" for id in (4, 5, 6))}
    paths.clear()
    assert ledger.view() == before
    assert {path for path in paths if "00000006" not in path} == {"latest.json", "checkpoints/00000004/plan.json"}
    assert "checkpoints/00000006/decision.json" in paths
    ledger.create_decision(Decision(**WHO, id=6, outcome="aborted", reason="CANCELLED"))
    assert [entry.aborted for entry in ledger.view().entries] == [False, False, True]


def test_the_view_finds_old_entries_of_the_run_by_the_index(ledger):
    history(ledger, 5)
    assert [entry.id for entry in ledger.view("run2").own_outside_view] == [2]
    assert ledger.view("run5").own_outside_view == (), "it is in the view"
    assert ledger.view("nobody").own_outside_view == ()
    ledger.store.delete("checkpoints/00000002")
    assert ledger.view("run2").own_outside_view == (2,), "retired: only the index tells"


def test_entries_are_read_with_all_their_records(ledger):
    history(ledger, 1)
    entry = ledger.entry(1)
    assert entry.plan == plan(1, run="run1")
    assert entry.acks["main"].ack == ack(1)
    assert entry.acks["main"].handle.sha == sha256(encode(ack(1)))
    assert (entry.completed, entry.aborted, entry.open) == (True, False, False)
    assert entry.manifest == manifest(1)


def test_a_folder_without_a_plan_at_the_end_is_somebody_who_stopped(ledger):
    history(ledger, 2)
    (ledger.store._root / "checkpoints" / "00000003").mkdir()
    (ledger.store._root / "checkpoints" / "00000003" / ".plan.json.0011.tmp").touch()
    assert ledger.view().last_id == 2
    assert ledger.create_entry(plan(3)).is_new
    assert ledger.view().last_id == 3


def test_the_very_first_creator_may_stop_there_too(ledger):
    ledger.start()
    (ledger.store._root / "checkpoints" / "00000001").mkdir(parents=True)
    assert ledger.view().entries == ()
    assert ledger.create_entry(plan(1)).is_new


def test_other_names_among_the_entries_are_none(ledger):
    history(ledger, 2)
    for name in ("1", "00000003.bak", "latest", "000000004"):
        (ledger.store._root / "checkpoints" / name).mkdir()
    assert ledger.ids() == [1, 2]
    assert ledger.view().last_id == 2


@pytest.mark.parametrize(("hint", "lost"), [(3, 3), (3, 4), (3, 5), (None, 1), (None, 3), (None, 5)])
@pytest.mark.parametrize("how", ["folder", "plan"])
def test_an_entry_that_is_missing_is_damage_wherever_it_is(ledger, hint, lost, how):
    """Never "nothing there yet": its id would be used again. (The last one's whole folder can only be missed if a
    later one, the hint or a table tells of it.)"""
    ledger.start()
    for id in range(1, 6):
        complete(ledger, id, published=hint is not None and id < hint)
    if hint:
        ledger.hint(LatestHint(**WHO, id=hint))
    ledger.store.delete(f"checkpoints/{lost:08d}" + ("" if how == "folder" else "/plan.json"))
    if (lost, how) == (5, "folder"):
        assert ledger.view().last_id == 4
        ledger.hint(LatestHint(**WHO, id=5))
    with pytest.raises(Corrupt) as caught:
        ledger.view()
    assert caught.value.reason == "LEDGER_DAMAGED"
    assert f"checkpoints/{lost:08d}/plan.json is missing" in caught.value.what


def test_what_is_missing_below_a_published_entry_is_missed_by_nobody(ledger):
    """All below it is settled. Which hint there is makes no difference."""
    history(ledger, 5, hint=False)
    for hint in (None, 3, 5):
        if hint:
            ledger.hint(LatestHint(**WHO, id=hint))
        ledger.store.delete("checkpoints/00000003/plan.json")
        assert ledger.view().last_id == 5


def test_a_log_that_is_gone_is_damage_not_empty(ledger):
    """Scenario 15: the hint tells of it, and where that is lost too, the index of runs does."""
    history(ledger, 3)
    shutil.rmtree(ledger.store._root / "checkpoints")
    for _ in range(2):
        with pytest.raises(Corrupt, match="is missing, but the log refers to checkpoint"):
            ledger.view()
        ledger.store.delete("latest.json")


def test_a_beginning_that_is_gone_is_damage_unless_retention_took_it(ledger):
    """Without the hint, the first entry that is left must say that all below it was published."""
    history(ledger, 3, hint=False)
    for id in (1, 2):
        shutil.rmtree(ledger.store._root / f"checkpoints/{id:08d}")
    assert [entry.id for entry in ledger.view().entries] == [3]
    ledger.store.delete("checkpoints/00000003/published.json")
    with pytest.raises(Corrupt, match="checkpoints/00000002/plan.json is missing"):
        ledger.view()


def test_an_unpublished_end_is_never_skipped_when_the_hint_is_lost(ledger):
    history(ledger, 3, hint=False)
    complete(ledger, 4, published=False)
    for id in (1, 2, 3):
        shutil.rmtree(ledger.store._root / f"checkpoints/{id:08d}")
    with pytest.raises(Corrupt):
        ledger.view()


def test_without_the_hint_the_view_begins_at_the_last_entry_that_is_noted_as_published(ledger):
    history(ledger, 3, hint=False)
    complete(ledger, 4, published=False)
    view = ledger.view()
    assert ([entry.id for entry in view.entries], view.settled) == ([3, 4], 0)
    ledger.create_retired(Retired(**WHO, id=3))
    assert [entry.id for entry in ledger.view().entries] == [2, 3, 4], "but not at one that retention is at"


def test_without_the_hint_what_is_left_of_a_retired_beginning_is_passed_over(ledger):
    history(ledger, 5, hint=False)
    ledger.create_retired(Retired(**WHO, id=1))
    ledger.create_retired(Retired(**WHO, id=2))
    ledger.store.delete("checkpoints/00000002/plan.json")
    assert ledger.view().last_id == 5


def test_without_the_hint_aborted_entries_are_no_beginning(ledger):
    ledger.start()
    complete(ledger, 1, published=False)
    ledger.create_entry(plan(2))
    ledger.create_decision(Decision(**WHO, id=2, outcome="aborted"))
    complete(ledger, 3, published=False)
    assert [entry.id for entry in ledger.view().entries] == [1, 2, 3]
    ledger.create_published(Published(**WHO, id=2, tables={}))
    assert [entry.id for entry in ledger.view().entries] == [1, 2, 3]


def test_a_log_of_tombstones_only_is_damage(ledger):
    history(ledger, 2, hint=False)
    for id in (1, 2):
        ledger.create_retired(Retired(**WHO, id=id))
    with pytest.raises(Corrupt):
        ledger.view()


@pytest.mark.parametrize("id", [1, 2, 3])
def test_a_hint_at_what_is_not_completed_is_not_believed(ledger, id):
    ledger.start()
    for n in (1, 2, 3):
        ledger.create_entry(plan(n))
    ledger.create_decision(Decision(**WHO, id=2, outcome="aborted"))
    ledger.hint(LatestHint(**WHO, id=id))
    view = ledger.view()
    assert ([entry.id for entry in view.entries], view.settled) == ([1, 2, 3], 0)


def test_a_hint_ahead_of_the_log_means_that_the_end_was_lost(ledger):
    history(ledger, 2)
    ledger.hint(LatestHint(**WHO, id=9))
    with pytest.raises(Corrupt, match="checkpoint 9"):
        ledger.view()


def test_eight_digits_are_not_the_end(ledger):
    ledger.start()
    ledger.create_entry(plan(99_999_999, base=None))
    assert ledger.ids() == [99_999_999]


# -- records that were tampered with ---------------------------------------------------------------------

RECORDS = [
    ("plan.json", Plan),
    ("acks/main.json", Ack),
    ("decision.json", Decision),
    ("published.json", Published),
    ("manifest", Manifest),
]


def find(ledger, id, name):
    if name == "manifest":
        name = next(n for n in ledger.store.names(f"checkpoints/{id:08d}") if n.startswith("manifest-"))
    return ledger.store._root / f"checkpoints/{id:08d}" / name


def read_all(ledger, id):
    ledger.published(id)
    return ledger.entry(id)


TAMPERING = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: b"\0" * len(data),
    "one bit": lambda data: data[:30] + bytes([data[30] ^ 0x80]) + data[31:],
    "a field more": lambda data: data.replace(b'{\n "format": 1,', b'{\n "format": 1,\n "x": 1,', 1),
    "a field twice": lambda data: data.replace(b'{\n "format": 1,', b'{\n "format": 1,\n "format": 1,', 1),
    "a newer format": lambda data: data.replace(b'"format": 1', b'"format": 2', 1),
    "another id": lambda data: data.replace(b'"id": 2', b'"id": 3', 1),
    "id 0": lambda data: data.replace(b'"id": 2', b'"id": 0', 1),
}


@pytest.mark.parametrize("name", [name for name, _ in RECORDS])
@pytest.mark.parametrize("how", TAMPERING)
def test_a_record_that_was_changed_is_damage_and_nothing_is_overwritten(ledger, name, how):
    history(ledger, 3)
    path = find(ledger, 2, name)
    changed = TAMPERING[how](path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    before = tree(ledger)
    with pytest.raises(Corrupt) as caught:
        read_all(ledger, 2)
    assert str(path) in caught.value.what
    assert caught.value.help
    assert tree(ledger) == before


@pytest.mark.parametrize("name", ["plan.json", "acks/main.json", "decision.json", "published.json"])
def test_a_record_of_another_checkpoint_is_recognised(ledger, name):
    history(ledger, 3)
    find(ledger, 2, name).write_bytes(find(ledger, 1, name).read_bytes())
    with pytest.raises(Corrupt, match=r"is about .*checkpoint 1"):
        read_all(ledger, 2)


def test_an_ack_of_another_job_is_recognised(ledger):
    history(ledger, 1)
    path = find(ledger, 1, "acks/main.json")
    record = json.loads(path.read_bytes())
    path.write_bytes(json.dumps(record | {"job": "other"}).encode())
    with pytest.raises(Corrupt, match="is about job 'other'"):
        ledger.entry(1)


def test_a_manifest_is_checked_against_the_hash_in_the_decision(ledger):
    history(ledger, 1)
    path = find(ledger, 1, "manifest")
    whole = path.read_bytes()
    for changed, state in (
        (whole.replace(b'"base": null', b'"base":  null'), "hash differs"),
        (None, "is missing"),
    ):
        path.unlink() if changed is None else path.write_bytes(changed)
        with pytest.raises(Corrupt) as caught:
            ledger.entry(1)
        assert caught.value.reason == "BAD_MANIFEST"
        assert state in caught.value.what
        assert "checkpoint 1 is completed by it" in caught.value.what


def test_a_manifest_of_another_checkpoint_is_recognised_even_with_the_right_hash(ledger):
    ledger.create_entry(plan(1))
    stray = encode(manifest(7))
    ledger.store.create(f"checkpoints/00000001/manifest-{sha256(stray)}.json", stray)
    ledger.create_decision(Decision(**WHO, id=1, outcome="completed", manifest=sha256(stray)))
    with pytest.raises(Corrupt, match="is about checkpoint 7"):
        ledger.entry(1)


@pytest.mark.parametrize("sha", ["../../../../etc/passwd", "", "x", "AB" * 32])
def test_a_decision_cannot_lead_out_of_its_folder(ledger, sha):
    ledger.create_entry(plan(1))
    record = {"format": 1, **WHO, "id": 1, "outcome": "completed", "manifest": sha}
    ledger.store.create("checkpoints/00000001/decision.json", json.dumps(record).encode())
    with pytest.raises(Corrupt, match="decision.json cannot be read"):
        ledger.entry(1)


def test_a_pipeline_record_that_was_changed_is_damage(ledger):
    ledger.start()
    path = ledger.store._root / "pipeline.json"
    for how in ("emptied", "cut", "zeroed", "a field more", "a newer format"):
        path.write_bytes(TAMPERING[how](encode(PipelineRecord(**WHO, uid="u", name="orders"))))
        with pytest.raises(Corrupt):
            ledger.start()


# -- payloads and side files -----------------------------------------------------------------------------


def of_length(length):
    return {"x": "y" * (length - len(encode_json({"x": ""})))}


def test_short_payloads_lie_inline_and_longer_ones_beside_the_record(ledger):
    short, long = of_length(INLINE_LIMIT), of_length(INLINE_LIMIT + 1)
    assert ledger.pack(short) == Payload(data=short)
    assert ledger.store.names("blobs") == []
    packed = ledger.pack(long)
    assert packed.data is None
    assert packed.blob.size == INLINE_LIMIT + 1
    assert ledger.store.names("blobs") == [packed.blob.path.removeprefix("blobs/")]
    for value, payload in ((short, ledger.pack(short)), (long, packed)):
        assert ledger.unpack(payload) == value


def test_equal_side_files_are_not_shared_so_each_can_be_removed(ledger):
    one, other = ledger.put_blob(b"same"), ledger.put_blob(b"same")
    assert one.sha == other.sha
    assert one.path != other.path


def test_a_side_file_whose_name_is_taken_is_not_taken_for_an_own_one(ledger):
    with seams.installed(seams.Seams(new_id=lambda: "0011223344556677")):
        first = ledger.put_blob(b"one")
        ledger.store.replace(first.path, b"other")
        with pytest.raises(Unavailable, match="is taken"):
            ledger.put_blob(b"one")


def test_side_files_survive_lost_answers(unclear):
    unclear.store.mode = "landed"
    blob = unclear.put_blob(b"data")
    assert unclear.get_blob(blob) == b"data"
    unclear.store.mode = "lost"
    with pytest.raises(Unavailable):
        unclear.put_blob(b"data")


@pytest.mark.parametrize("change", [None, b"", b"other", b"{}"])
def test_a_side_file_is_checked_against_its_hash(ledger, change):
    blob = ledger.put_blob(b'{"x": 1}')
    path = ledger.store._root / blob.path
    path.unlink() if change is None else path.write_bytes(change)
    with pytest.raises(Corrupt) as caught:
        ledger.unpack(Payload(blob=blob))
    assert caught.value.reason == "BAD_BLOB"
    assert str(path) in caught.value.what
    assert blob.sha in caught.value.expected


def test_a_side_file_that_is_no_object_is_refused(ledger):
    with pytest.raises(Corrupt):
        ledger.unpack(Payload(blob=ledger.put_blob(b"[1]")))


def test_a_payload_that_names_nothing_is_refused(ledger):
    with pytest.raises(Corrupt, match="neither data nor a file"):
        ledger.unpack(Payload())


def test_a_side_file_cannot_lie_elsewhere(ledger):
    ledger.start()
    for path in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(Invalid):
            ledger.get_blob(Blob(path=path, sha="ab" * 32, size=1))


# -- removal ---------------------------------------------------------------------------------------------


def test_removing_an_entry_takes_its_plan_first_and_its_tombstone_last(ledger, monkeypatch):
    """Whoever reads in between finds no entry, never one that looks open."""
    history(ledger, 3)
    ledger.create_retired(Retired(**WHO, id=1))
    seen = []
    delete = LocalStore.delete

    def watched(self, path):
        delete(self, path)
        seen.append((path.removeprefix("checkpoints/00000001"), ledger.entry(1)))

    monkeypatch.setattr(LocalStore, "delete", watched)
    ledger.delete_entry(1, [])
    names = [name for name, _ in seen]
    assert names[0] == "/plan.json"
    assert names[-2:] == ["/retired.json", ""]
    assert {entry for _, entry in seen} == {None}
    assert ledger.ids() == [2, 3]


def test_expiry_is_told_by_the_store(ledger):
    ledger.create_entry(plan(1, timeout_s=1000.0))
    assert not ledger.expired(plan(1, timeout_s=1000.0))
    assert ledger.expired(plan(1, timeout_s=-1.0))
    assert not ledger.expired(plan(2, timeout_s=-1.0)), "no plan, no age"


def test_a_range_of_a_plan_may_be_long(ledger):
    splits = ledger.pack(of_length(3_000_000))
    long = Range(kind="files", start=None, end={}, splits=splits, empty=False)
    assert ledger.create_entry(plan(1, sources={"in": long})).is_new
    assert len(encode_json(ledger.unpack(ledger.entry(1).plan.sources["in"].splits))) == 3_000_000
