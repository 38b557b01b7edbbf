"""Records to bytes and back: what is read is what was written, or it is refused."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from tests.kit.records import RECORDS, SAMPLES, jsons, objects
from tidegate.errors import Corrupt, Invalid
from tidegate.records.codec import RECORD_LIMIT, decode, decode_json, encode, encode_json, fingerprint, sha256
from tidegate.records.records import (
    Ack,
    Act,
    BackfillRecord,
    Control,
    Decision,
    Handle,
    JobStats,
    LatestHint,
    Manifest,
    Payload,
    Plan,
    PublishedTable,
    Range,
    Request,
    Retired,
    SparkWork,
)

GOLDEN = Path(__file__).parent / "golden"
EACH = pytest.mark.parametrize("name", SAMPLES)
QUICK = settings(max_examples=40, deadline=None)


def refusal(data, kind, path="checkpoints/00000042/plan.json"):
    with pytest.raises(Corrupt) as caught:
        decode(data, kind, path)
    assert path in caught.value.what
    assert caught.value.expected
    assert caught.value.help
    return caught.value


def fields(name):
    return json.loads(encode(SAMPLES[name]))


def as_bytes(value):
    return json.dumps(value).encode()


# -- what is written comes back --------------------------------------------------------------------------


@EACH
def test_every_record_comes_back_as_it_was_written(name):
    @QUICK
    @given(RECORDS[name])
    def check(record):
        data = encode(record)
        assert decode(data, type(record), "x") == record
        assert encode(decode(data, type(record), "x")) == data

    check()


@EACH
def test_the_bytes_of_each_record_are_fixed(name):
    """A change of what is written shows here. CONTRIBUTING.md says what a new field needs (Add a field to a record)."""
    golden = (GOLDEN / f"{name}.json").read_bytes()
    assert encode(SAMPLES[name]) == golden
    assert decode(golden, type(SAMPLES[name]), "x") == SAMPLES[name]


@pytest.mark.parametrize("name", ["plan", "trouble"])
def test_a_record_of_an_older_version_may_quote_rows(name):
    older = {field: value for field, value in fields(name).items() if field != "quotes_rows"}
    assert decode(as_bytes(older), type(SAMPLES[name]), "x").quotes_rows


@EACH
def test_a_record_is_text_with_format_first_that_a_person_can_read(name):
    text = encode(SAMPLES[name]).decode()
    assert text.startswith('{\n "format": 1,\n "attempt": ')
    assert text.endswith("}\n")


@QUICK
@given(objects)
def test_a_payload_comes_back_and_equal_payloads_have_equal_bytes(value):
    data = encode_json(value)
    assert decode_json(data, "x") == value
    assert encode_json(dict(reversed(value.items()))) == data
    assert sha256(data) == sha256(encode_json(decode_json(data, "x")))


@QUICK
@given(jsons)
def test_a_fingerprint_is_short_and_depends_on_the_value_alone(value):
    assert fingerprint(value) == fingerprint(json.loads(json.dumps(value)))
    assert len(fingerprint(value)) == 16
    assert fingerprint([value, 1]) != fingerprint([value, 2])


def test_an_entry_that_is_no_checkpoint_says_what_it_does():
    act = Control(action="suspend", by="mia on laptop", reason="the feed is broken")
    plan = msgspec.structs.replace(SAMPLES["plan"], kind="control", control=act)
    assert decode(encode(plan), Plan, "x") == plan
    for wrong in ({"kind": "scheduled"}, {"control": None}, {"control": {"action": "explode", "by": "mia"}}):
        assert "control" in refusal(as_bytes(json.loads(encode(plan)) | wrong), Plan).what


def test_verdicts_that_do_not_say_what_late_rows_stay_are_read():
    """As versions before 0.4 wrote them."""
    ack = fields("ack")
    for verdict in ack["gates"].values():
        del verdict["stays"], verdict["behind"]
    verdicts = decode(as_bytes(ack), type(SAMPLES["ack"]), "x").gates.values()
    assert verdicts
    assert all((verdict.stays, verdict.behind) == ({}, []) for verdict in verdicts)


def test_requests_and_lines_that_do_not_know_of_rows_released_in_place_are_read():
    """As versions before 0.4 wrote them."""
    request = fields("request")
    del request["in_place"]
    assert not decode(as_bytes(request), Request, "x").in_place
    line = BackfillRecord(attempt="x", created="", name="fix", uid="u", origin=0, manifest=None, by="ann")
    written = json.loads(encode(line))
    del written["in_place"]
    assert decode(as_bytes(written), BackfillRecord, "x") == line


def test_records_that_do_not_know_of_diverts_are_read():
    """As versions before 0.3 wrote them."""
    plan, ack, manifest = fields("plan"), fields("ack"), fields("manifest")
    del plan["divert"], ack["diverted"]
    for part in manifest["tables"].values():
        del part["diverted"]
    assert decode(as_bytes(plan), Plan, "x") == SAMPLES["plan"]
    assert decode(as_bytes(ack), Ack, "x") == SAMPLES["ack"]
    assert decode(as_bytes(manifest), Manifest, "x") == SAMPLES["manifest"]


def test_a_change_by_hand_that_diverts_rows_says_which():
    plan = fields("divert")
    for wrong in ({"divert": None}, {"by_hand": None}):
        assert "diverts rows" in refusal(as_bytes(plan | wrong), Plan).what


def test_plans_that_do_not_say_by_which_clock_they_go_are_read():
    """As versions before 0.4 wrote them: they went by when they were created, and a change by hand read no source."""
    plan = fields("plan")
    assert decode(as_bytes(plan), Plan, "x").time == plan["clock"]
    for name in ("clock", "by_hand", "drops"):
        del plan[name]
    old = decode(as_bytes(plan), Plan, "x")
    assert old.time == plan["created"]
    assert not old.is_manual_edit
    still = {"splits": {"data": {}, "blob": None}, "empty": True, "more": True}
    sources = {name: part | still for name, part in plan["sources"].items()}
    assert decode(as_bytes(plan | {"sources": sources}), Plan, "x").is_manual_edit


def test_records_that_do_not_say_what_spark_did_are_read():
    """As versions before 0.3 wrote them."""
    ack, plan = fields("ack"), fields("plan")
    for name in ("steps", "between"):
        del ack["stats"][name]
    del plan["planning_s"]
    stats = decode(as_bytes(ack), Ack, "x").stats
    assert (stats.steps, stats.between_steps) == ([], None)
    assert stats.spark == stats.spark_of("read") == SparkWork()
    assert decode(as_bytes(plan), Plan, "x").planning_s is None


def test_an_act_with_parameters_of_an_earlier_version_has_them_under_todays_names():
    """As versions before 0.3 wrote them: a run may take up an act that was asked for before tidegate was upgraded."""
    act = fields("act") | {"action": "rollback", "asked": {"to": 42, "undone": [43], "keep": ["copied"], "note": "x"}}
    told = decode(as_bytes(act), Act, "x")
    assert told.parameters == {"to": 42, "expected_undone": [43], "keep_rows_of": ["copied"], "note": "x"}
    assert decode(as_bytes(act | {"action": "swap"}), Act, "x").parameters["undone"] == [43], "it never had that one"


# -- what is not exactly a record is refused -------------------------------------------------------------


@EACH
def test_each_missing_field_is_refused(name):
    optional = {
        "control",
        "clock",
        "broken_promises",
        "by_hand",
        "drops",
        "generation",
        "in_place",
        "promises",
        "interval",
        "by_interval",
        "set_aside",
        "reach",
        "manifest",
        "reason",
        "detail",
        "counts",
        "planning_s",
        "source_changes",
        "notifies",
        "let_go",
        "drift",
    }
    optional |= {"id", "settled"} if name == "told" else set()
    optional |= {"replays", "restart", "hooks", "origin", "drain", "draining"} | ({"by"} if name == "pin" else set())
    optional |= {"run"} if name == "act" else set()
    optional |= {"takes", "overtaking", "in_flight", "through", "ahead", "divert", "diverted", "columns"}
    optional |= {"home", "paths"} if name == "published" else set()
    optional |= {
        "states",
        "unplanned",
        "notified",
        "quotes_rows",
        "memory",
        "gates",
        "pins",
        "note",
        "seen",
        "ids",
        "checkpoints",
        "rules",
        "correct",
        "correct_sql",
        "withdraws",
        "inputs",
        "channels",
        "quarantine",
        "quarantine_held",
    }
    whole = fields(name)
    for field in set(whole) - optional:
        left = {key: value for key, value in whole.items() if key != field}
        assert field in refusal(as_bytes(left), type(SAMPLES[name])).what


@EACH
def test_an_unknown_field_is_refused_because_a_newer_version_may_have_meant_something_by_it(name):
    error = refusal(as_bytes(fields(name) | {"surprise": 1}), type(SAMPLES[name]))
    assert "surprise" in error.what


def test_an_unknown_field_deep_inside_is_refused():
    plan = fields("plan")
    plan["sources"]["orders"]["splits"]["blob"]["surprise"] = 1
    assert "$.sources[...].splits.blob" in refusal(as_bytes(plan), Plan).what


@EACH
@pytest.mark.parametrize("wrong", [None, True, 1.5, [], {}], ids=repr)
def test_each_field_of_the_wrong_type_is_refused(name, wrong):
    whole = fields(name)
    for field in ("format", "attempt", "created"):
        refusal(as_bytes(whole | {field: wrong}), type(SAMPLES[name]))
    if "id" in whole:
        assert "$.id" in refusal(as_bytes(whole | {"id": wrong}), type(SAMPLES[name])).what


@EACH
def test_a_torn_record_is_refused_wherever_it_is_cut(name):
    whole = encode(SAMPLES[name])
    for end in range(0, len(whole) - 2, 7):
        refusal(whole[:end], type(SAMPLES[name]))


@pytest.mark.parametrize(
    "data",
    {
        "empty": b"",
        "zeros, as after a power loss": b"\0" * 512,
        "binary": bytes(range(256)),
        "utf-16": encode(SAMPLES["latest"]).decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + encode(SAMPLES["latest"]),
        "not utf-8": encode(SAMPLES["latest"]).replace(b"2026", b"\xff\xfe\xfd\xfc"),
        "half a surrogate pair": encode(SAMPLES["latest"]).replace(b"2026", b"\\ud800"),
        "two records": encode(SAMPLES["latest"]) * 2,
        "a list": b"[1]",
        "a number": b"42",
        "null": b"null",
        "html": b"<html>503 Service Unavailable</html>",
        "single quotes": b"{'format': 1}",
        "a comment": b'{"format": 1, /* no */ "id": 1}',
        "NaN": b'{"format": 1, "attempt": "x", "created": "x", "id": NaN}',
        "Infinity": b'{"format": 1, "attempt": "x", "created": "x", "id": Infinity}',
        "lists in lists": b'{"format": 1, "id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        "objects in objects": b'{"format": 1, "id": ' + b'{"a":' * 100_000,
        "a huge integer": b'{"format": 1, "attempt": "x", "created": "x", "id": ' + b"9" * 5000 + b"}",
        "a huge format": b'{"format": ' + b"9" * 5000 + b"}",
        "id 0": b'{"format": 1, "attempt": "x", "created": "x", "id": 0}',
        "id -1": b'{"format": 1, "attempt": "x", "created": "x", "id": -1}',
        "no format": b'{"attempt": "x", "created": "x", "id": 1}',
        "format null": b'{"format": null, "attempt": "x", "created": "x", "id": 1}',
        "format text": b'{"format": "1", "attempt": "x", "created": "x", "id": 1}',
        "format 1.0": b'{"format": 1.0, "attempt": "x", "created": "x", "id": 1}',
        "format true": b'{"format": true, "attempt": "x", "created": "x", "id": 1}',
        "too large": encode(SAMPLES["latest"]) + b" " * RECORD_LIMIT,
    }.values(),
    ids=lambda data: repr(data[:24]),
)
def test_bytes_that_tidegate_never_writes_are_refused(data):
    refusal(data, LatestHint)


def test_a_nested_payload_that_goes_too_deep_is_refused():
    """Where any JSON is allowed, too."""
    bomb = encode(SAMPLES["plan"]).replace(b'"last": "a.json"', b'"last": ' + b"[" * 100_000 + b"]" * 100_000)
    refusal(bomb, Plan)
    with pytest.raises(Corrupt):
        decode_json(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "blobs/x.json")


def test_a_field_that_is_there_twice_is_refused():
    aborted = encode(SAMPLES["abort"]).decode()
    twice = aborted.replace('"outcome": "aborted"', '"outcome": "completed",\n "outcome": "aborted"')
    assert "'outcome' is duplicated" in refusal(twice.encode(), Decision).what
    inside = encode(SAMPLES["plan"]).replace(b'"last": "a.json"', b'"last": "a.json", "last": "b.json"')
    assert "'last' is duplicated" in refusal(inside, Plan).what


@pytest.mark.parametrize("found", [0, -1, 2, 10**12])
def test_another_format_is_named_and_says_which_version_to_run(found):
    error = refusal(as_bytes({"format": found, "whatever": "a newer version has"}), Plan)
    assert error.reason == "UNKNOWN_FORMAT"
    assert f"format {found} " in error.what
    assert error.expected == "format 1"


def test_one_record_is_not_taken_for_another():
    """A retired.json copied over latest.json would read the same: so the ledger compares ids, too."""
    for name, sample in SAMPLES.items():
        for other, record in SAMPLES.items():
            same = (
                {"latest", "retired", "told"},
                {"telling", "told"},
                {"decision", "abort"},
                {"plan", "rollback", "swap", "divert"},
                {"ack", "diverting"},
                {"manifest", "restored", "diverts"},
                {"pipeline", "forked"},
            )
            if name != other and not any({name, other} <= each for each in same):
                refusal(encode(sample), type(record))


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        ("decision", {"manifest": None}, "names a manifest"),
        ("abort", {"manifest": "ef" * 32}, "names none"),
        ("decision", {"manifest": "../../../etc/passwd"}, "$.manifest"),
        ("decision", {"outcome": "maybe"}, "$.outcome"),
        ("plan", {"base": 42}, "cannot rest on 42"),
        ("plan", {"base": 43}, "cannot rest on 43"),
        ("plan", {"base": 0}, "$.base"),
        ("plan", {"kind": "explosion"}, "$.kind"),
        ("plan", {"interval": ["a"]}, "$.interval"),
        ("manifest", {"jobs": {"main": {"entry": 1, "sha": "short"}}}, "sha"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_fields_that_contradict_each_other_are_refused(name, changed, why):
    assert why in refusal(as_bytes(fields(name) | changed), type(SAMPLES[name])).what


@pytest.mark.parametrize(
    "path", ["", "blobs/", "plan.json", "checkpoints/00000001", "/etc/passwd", "blobs/../x", "x/y"]
)
def test_a_side_file_lies_in_its_own_folder_and_nowhere_else(path):
    """Retention deletes by this path."""
    plan = fields("plan")
    plan["sources"]["orders"]["splits"]["blob"]["path"] = path
    refusal(as_bytes(plan), Plan)


# -- what cannot be read back is not written -------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), [1, {"deep": [float("nan")]}], {1: "x"}, {None: 1}, "\ud800", object()],
    ids=lambda value: str(value).partition(" at ")[0].encode("ascii", "replace").decode(),
)
def test_what_is_not_json_is_refused_before_it_is_written(value):
    with pytest.raises(Invalid) as caught:
        encode_json({"x": value})
    assert caught.value.reason == "NOT_JSON"
    assert caught.value.help


def test_a_record_holding_what_is_not_json_is_refused():
    with pytest.raises(Invalid, match="plan.json cannot be written as JSON: nan"):
        encode(type(SAMPLES["plan"])(**{**_attributes("plan"), "timeout_s": float("nan")}))


@pytest.mark.parametrize(
    ("name", "field", "value", "where"),
    [
        ("plan", "kind", "nightly", "$.kind"),
        ("plan", "timeout_s", "10 min", "$.timeout_s"),
        ("plan", "base", 42, "cannot rest on 42"),
        ("plan", "id", 0, "$.id"),
        ("ack", "sinks", {"orders": Payload(data=[1])}, "$.sinks"),
        ("ack", "stats", JobStats(rows={"orders": 1.5}), "$.stats.rows"),
        ("manifest", "jobs", {"main": Handle(entry=1, sha="short")}, "$.jobs"),
        ("decision", "manifest", None, "names a manifest"),
        ("published", "tables", {"t": PublishedTable(uri="x", version=None, log_hash="")}, "$.tables"),
        ("plan", "sources", {"in": Range(kind="x", start=None, end=None, splits=Payload(data={}), empty=0)}, "empty"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_refused_before_it_is_written(name, field, value, where):
    """A source or sink of a user's own may return anything. Once written, it would be damage forever."""
    with pytest.raises(Invalid) as caught:
        encode(type(SAMPLES[name])(**{**_attributes(name), field: value}))
    assert caught.value.reason == "NOT_A_RECORD"
    assert SAMPLES[name].title in caught.value.what
    assert where in caught.value.what


def test_a_value_that_contains_itself_is_refused():
    value = {}
    value["self"] = value
    with pytest.raises(Invalid):
        encode_json(value)


def test_a_record_that_is_too_large_is_refused_before_it_is_written():
    for run, fits in (("x" * (RECORD_LIMIT // 2), True), ("x" * RECORD_LIMIT, False)):
        plan = Plan(**{**_attributes("plan"), "run": run})
        if fits:
            assert decode(encode(plan), Plan, "x") == plan
            continue
        with pytest.raises(Invalid) as caught:
            encode(plan)
        assert caught.value.reason == "RECORD_TOO_LARGE"
        assert "plan.json" in caught.value.what


def test_the_size_limit_is_exact():
    room = RECORD_LIMIT - len(encode(Retired(attempt="", created="", id=1)))
    full = Retired(attempt="x" * room, created="", id=1)
    assert len(encode(full)) == RECORD_LIMIT
    assert decode(encode(full), Retired, "x") == full
    with pytest.raises(Invalid):
        encode(Retired(attempt="x" * (room + 1), created="", id=1))


def _attributes(name):
    record = SAMPLES[name]
    return {field: getattr(record, field) for field in record.__struct_fields__}


def test_an_ack_and_a_plan_of_an_older_version_know_nothing_of_changing_columns():
    ack = {field: value for field, value in fields("ack").items() if field != "drift"}
    assert decode(as_bytes(ack), Ack, "x").drift == {}
    plan = fields("plan")
    del plan["sources"]["orders"]["schema"]
    assert decode(as_bytes(plan), Plan, "x").sources["orders"].schema is None
