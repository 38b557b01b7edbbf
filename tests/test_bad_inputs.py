"""What users, files and storage may give us that is wrong: each is told clearly, and nothing is written.

Each case: the error is of the right kind, names the offending value, says what was expected or what to do, and
the folder is as it was before.
"""

import json
import shutil

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tidegate import Pipeline
from tidegate.connectors.sink import AtLeastOnceSink
from tidegate.errors import Corrupt, Invalid, TidegateError
from tidegate.ledger import open_ledger
from tidegate.ledger.object_store import ObjectStore
from tidegate.records.codec import RECORD_LIMIT, encode_json
from tidegate.records.place import Place

CASES: dict[str, tuple] = {}
"""Name → (what is done with the world, kind of error, text that the error must hold)."""


def case(name, act, kind, mentions):
    assert name not in CASES, name
    CASES[name] = (act, kind, mentions)


# -- names -----------------------------------------------------------------------------------------------

NAMES = {
    "empty": "",
    "blank": " ",
    "upper case": "Orders",
    "with a space": "my orders",
    "with a slash": "a/b",
    "parent folder": "..",
    "this folder": ".",
    "path to the parent": "../orders",
    "absolute": "/etc",
    "hidden": ".orders",
    "leading dash": "-rf",
    "leading underscore": "_delta_log",
    "newline at the end": "orders\n",
    "NUL": "or\0ders",
    "umlaut": "bestellüngen",
    "look-alike": "оrders",
    "full-width": "ｏrders",
    "right-to-left mark": "\u202eorders",
    "zero-width": "or\u200bders",
    "64 characters": "a" * 64,
    "percent": "a%2fb",
    "quote": "a'; drop table x; --",
    "None": None,
    "number": 7,
    "bytes": b"orders",
    "list": ["orders"],
}
for what, name in NAMES.items():
    case(f"pipeline name: {what}", lambda w, name=name: open_ledger(str(w.root), name), Invalid, repr(name))


def declared(change):
    """A sound pipeline with one thing wrong, checked as `tidegate run` does it."""

    def act(world):
        pipeline = Pipeline("orders")
        stream = pipeline.source("in", ToySource(ToyFeed()))
        change(pipeline, stream)
        stream.sink("out", ToySink("out", ToyTables()))
        pipeline.graph(Place(str(world.root)))

    return act


for what in ("empty", "with a slash", "parent folder", "newline at the end", "umlaut", "64 characters"):
    name = NAMES[what]
    case(f"sink name: {what}", declared(lambda p, s, name=name: s.sink(name, sink("x"))), Invalid, repr(name))
    case(
        f"stage name: {what}",
        declared(lambda p, s, n=name: p.stage(s, name=n or "<x>")(lambda f: f).sink("x", sink("x"))),
        Invalid,
        repr(name or "<x>"),
    )

# -- paths -----------------------------------------------------------------------------------------------

PATHS = {
    "empty": "",
    "blank": "  ",
    "NUL": "tables\0x",
    "newline": "tables\nx",
    "escape character": "tables\x1b[2J",
    "file URL with a host": "file://host/tables",
    "file URL without a path": "file://",
    "None": None,
    "number": 3,
}
for what, path in PATHS.items():
    case(f"root: {what}", lambda w, path=path: open_ledger(path, "orders"), Invalid, repr(path))
    case(f"table path: {what}", lambda w, path=path: Place(str(w.root)).url(path), Invalid, repr(path))
for what, path in {
    "parent": "../x",
    "empty part": "a//b",
    "absolute": "/etc/passwd",
    "this": "./x",
    "NUL": "x\0",
}.items():
    case(f"ledger path: {what}", lambda w, path=path: w.store().create(path, b""), Invalid, repr(path))
case(
    "root: longer than the system allows", lambda w: open_ledger(str(w.root / ("x" * 300)), "o").start(), Invalid, "xxx"
)
for what, url in {"unknown scheme": "foo://b/x", "no bucket": "s3://", "bad host": "s3://a b/x"}.items():
    case(f"root: {what}", lambda w, url=url: ObjectStore(url, {}).read("x"), Invalid, url.rstrip("/"))
case("root: unknown option", lambda w: ObjectStore("s3://b/x", {"colour": "red"}).read("x"), Invalid, "colour")

# -- runs and checkpoints ----------------------------------------------------------------------------------

for what, run in {
    "empty": "",
    "blank": "   ",
    "half a surrogate pair": "run\ud800",
    "too long": "r" * 1001,
    "None": None,
    "number": 5,
}.items():
    case(f"run id: {what}", lambda w, run=run: w.coordinator().trigger(run), Invalid, repr(run)[:60])
for id in (0, -1, 3, 99_999_999):
    case(f"checkpoint {id}: complete", lambda w, id=id: w.coordinator().complete(id), Invalid, f"checkpoint {id}")
    case(f"checkpoint {id}: abort", lambda w, id=id: w.coordinator().abort(id, "X"), Invalid, f"checkpoint {id}")
    case(f"checkpoint {id}: job", lambda w, id=id: w.work(id), Invalid, f"checkpoint {id}")

# -- pipelines -------------------------------------------------------------------------------------------


def sink(name):
    return ToySink(name, ToyTables())


class Repeating(AtLeastOnceSink, ToySink):
    """Cannot promise exactly once."""


def stage(pipeline, stream, function, **options):
    pipeline.stage(stream, **{"name": "odd"} | options)(function).sink("odd", sink("odd"))


PIPELINES = {
    "unknown input": (lambda p, s: p.stage("nobody", name="x")(lambda f: f).sink("x", sink("x")), "'nobody'"),
    "source read by nothing": (lambda p, s: p.source("idle", ToySource(ToyFeed())), "'idle'"),
    "stage that feeds nothing": (lambda p, s: p.stage(s, name="idle")(lambda f: f), "'idle'"),
    "two sources of one name": (lambda p, s: p.source("in", ToySource(ToyFeed())), "'in' names 2"),
    "two sinks of one name": (lambda p, s: s.sink("out", sink("other")), "'out' names 2"),
    "two sinks on one table": (lambda p, s: s.sink("second", sink("out")), "second, out write to one target toy:out"),
    "a stage in a circle": (lambda p, s: p.stage("a", name="a")(lambda f: f), "stages a feed each other"),
    "a stage that takes too little": (lambda p, s: stage(p, s, lambda: 1), "'odd' cannot take its 1 inputs"),
    "a stage that takes too much": (lambda p, s: stage(p, s, lambda a, b: 1), "'odd' cannot take its 1 inputs"),
    "a stage that is text": (lambda p, s: stage(p, s, "select 1"), "'odd' is a str"),
    "a stage without input": (lambda p, s: p.stage(name="x")(lambda: 1).sink("x", sink("x")), "'x' has no input"),
    "a lambda without a name": (lambda p, s: p.stage(s)(lambda f: f).sink("x", sink("x")), "stage name ''"),
    "a source that is text": (lambda p, s: p.source("x", "a.csv").sink("x", sink("x")), "source 'x' is a str"),
    "a sink that is text": (lambda p, s: s.sink("x", "tables/x"), "sink 'x' is a str"),
    "a sink that repeats": (lambda p, s: s.sink("x", Repeating("x", ToyTables())), "'x' can repeat rows"),
    "a stream of another pipeline": (
        lambda p, s: p.stage(Pipeline("other").source("theirs", ToySource(ToyFeed()))),
        "'theirs'",
    ),
    "an input that is no stream": (lambda p, s: p.stage(42), "int"),
    "outputs given as text": (lambda p, s: p.stage(s, outputs="good"), "'good'"),
    "an output that is not there": (lambda p, s: s["good"], "'good'"),
    "an output named twice": (
        lambda p, s: p.stage(s, name="x", outputs=["a", "a"])(lambda f: f)["a"].sink("x", sink("x")),
        "'a' more than once",
    ),
}
for what, (change, mentions) in PIPELINES.items():
    case(f"pipeline: {what}", declared(change), Invalid, mentions)
case("pipeline: nothing in it", lambda w: Pipeline("empty").graph(), Invalid, "'empty'")
case("pipeline: no such job", lambda w: w.coordinator().graph.job("x"), Invalid, "'x'")

# -- values that no record can hold ------------------------------------------------------------------------

for what, value in {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a key that is no text": {1: 2},
    "half a surrogate pair": "\udc80",
    "an object": object(),
}.items():
    shown = {"an object": "object", "a key that is no text": "key 1", "half a surrogate pair": "udc80"}.get(
        what, str(value)
    )
    case(f"position: {what}", lambda w, value=value: encode_json({"at": value}), Invalid, shown)


class Endless(ToySource):
    """Plans more than a record holds."""

    def plan(self, start, context):
        planned = super().plan(start, context)
        return type(planned)(end={"at": "x" * RECORD_LIMIT}, splits={}, is_empty=False)


def too_long(world):
    world.source = Endless(ToyFeed(3))
    world.trigger("run")


case("plan: longer than a record", too_long, Invalid, "plan.json")

# -- records ---------------------------------------------------------------------------------------------

CHANGES = {
    "empty": lambda data: b"",
    "zeros": lambda data: b"\0" * len(data),
    "binary": lambda data: bytes(range(256)),
    "cut in the middle": lambda data: data[: len(data) // 2],
    "twice": lambda data: data * 2,
    "oversized": lambda data: data + b" " * RECORD_LIMIT,
    "with an unknown field": lambda data: changed(data, surprise=1),
    "without a field": lambda data: data.replace(b'"created"', b'"made"', 1),
    "with a wrong type": lambda data: changed(data, id="two"),
    "of a newer format": lambda data: changed(data, format=2),
    "without a format": lambda data: changed(data, format=None),
    "with a field twice": lambda data: data.replace(b"{\n", b'{\n "id": 1,\n', 1),
    "of another checkpoint": lambda data: changed(data, id=1),
    "NaN": lambda data: data.replace(b'"id": 2', b'"id": NaN', 1),
    "too deep": lambda data: data.replace(b'"id": 2', b'"id": ' + b"[" * 100_000, 1),
    "html": lambda data: b"<html>502 Bad Gateway</html>",
}


def changed(data, **fields):
    return json.dumps(json.loads(data) | fields).encode()


def tampered(name, change):
    def act(world):
        path = world.path(2, name)
        before = path.read_bytes()
        path.write_bytes(CHANGES[change](before))
        try:
            world.ledger.entry(2)
            world.ledger.published(2)
        finally:
            path.write_bytes(before)

    return act


for record in ("plan.json", "decision.json", "acks/main.json", "published.json"):
    for change in CHANGES:
        case(f"{record} {change}", tampered(record, change), Corrupt, f"00000002/{record}")


def without(name):
    """A started ledger from which a part is missing."""

    def act(world):
        copy = ToyWorld(world.root / "copy", tables=world.tables)
        shutil.copytree(world.folder, copy.folder)
        lost = copy.folder / name
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        try:
            copy.trigger("next")
        finally:
            shutil.rmtree(copy.root)

    return act


for name in ("pipeline.json", "checkpoints", "checkpoints/00000002", "checkpoints/00000002/plan.json"):
    case(f"ledger without {name}", without(name), Corrupt, name.partition("/0")[0])


# -- all of them -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A pipeline with two completed checkpoints."""
    world = ToyWorld(tmp_path_factory.mktemp("bad"))
    for run in ("one", "two"):
        world.checkpoint(run, rows=3)
    return world


def tree(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_told_clearly_and_nothing_is_written(name, world):
    act, kind, mentions = CASES[name]
    before, rows = tree(world.root), (world.offsets("a"), len(world.tables["a"].files))
    with pytest.raises(TidegateError) as caught:
        act(world)
    world.source = None
    error = caught.value
    assert type(error) is kind, error
    assert mentions in error.what, error
    assert error.help or error.expected, error
    assert error.reason != "ERROR"
    assert error.reason.isupper()
    assert tree(world.root) == before
    assert (world.offsets("a"), len(world.tables["a"].files)) == rows


def test_there_are_enough_of_them():
    assert len(CASES) >= 100
