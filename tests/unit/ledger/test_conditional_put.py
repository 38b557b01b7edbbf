"""A store that cannot promise that an object is made once is refused at the first start, with what to do."""

from types import SimpleNamespace

import pytest

from tests.kit.object_server import ObjectServer
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFeed, ToySource
from tidegate import Pipeline
from tidegate.checkpoint.compatibility import check_targets
from tidegate.cli.targets import Target
from tidegate.connectors.sink import SinkContext
from tidegate.errors import Corrupt, Invalid
from tidegate.ledger import Ledger, LocalStore, open_ledger
from tidegate.ledger.ledger import stamp
from tidegate.ledger.object_store import ObjectStore
from tidegate.records.place import Place
from tidegate.records.records import Published, PublishedTable
from tidegate.sinks import DeltaAppend
from tidegate.verify import tables as verify_tables

pytestmark = pytest.mark.slow  # the client of the object store waits between its tries


@pytest.fixture(scope="module")
def server():
    server = ObjectServer()
    yield server
    server.close()


@pytest.fixture(params=["ignored", "refused"])
def unsafe(request, server):
    server.begin(request.param)
    return server


@pytest.fixture
def safe(server):
    server.begin("kept")
    return server


def refusal_of(call):
    with pytest.raises(Invalid) as refused:
        call()
    assert refused.value.reason == "NO_CONDITIONAL_PUT"
    said = str(refused.value)
    assert "If-None-Match" in said
    assert "'root'" in said
    assert "again" not in said
    assert "canary" not in said
    return said


def test_a_pipeline_does_not_begin_on_a_store_without_conditional_puts(unsafe):
    ledger = open_ledger("s3://bucket/root", "orders", unsafe.options)
    assert "s3://bucket/root/orders" in refusal_of(ledger.start)
    assert unsafe.names == [], "nothing is left there"


def test_nor_does_a_run_make_a_checkpoint_there(unsafe, tmp_path):
    class OnObjects(ToyWorld):
        def store(self):
            return ObjectStore("s3://bucket/root/orders", unsafe.options)

    world = OnObjects(tmp_path)
    world.feed_more(3)
    for run in ("one", "two"):
        refusal_of(lambda run=run: world.trigger(run))
    assert unsafe.names == []


def test_a_store_with_conditional_puts_is_tried_out_once(safe):
    ledger = open_ledger("s3://bucket/root", "orders", safe.options)
    begun = ledger.start()
    assert safe.names == ["root/orders/pipeline.json"]
    safe.treat("ignored")
    assert ledger.start() == begun, "what has begun is not tried out again"


def test_a_pipeline_that_began_before_stores_were_tried_out_is_tried_out_once(safe, tmp_path):
    class OnObjects(ToyWorld):
        def store(self):
            return ObjectStore("s3://bucket/root/orders", safe.options)

    world = OnObjects(tmp_path)
    world.ledger.start()
    world.feed_more(9)
    safe.treat("ignored")
    refusal_of(lambda: world.trigger("one"))
    assert [name for name in safe.names if "checkpoints" in name] == [], "refused before anything is planned"
    safe.treat("kept")
    assert world.trigger("one") == 1
    assert world.ledger.tried() == {"s3://bucket"}
    world.limit(max_concurrent_checkpoints=9)
    safe.treat("ignored")
    assert world.trigger("two") == 2, "that costs nothing any more"


def test_the_store_of_a_table_is_tried_out_too_if_the_pipeline_began_before(unsafe, tmp_path, monkeypatch):
    monkeypatch.setattr(DeltaAppend, "check", lambda *_: None)  # it has published there long since
    pipeline = Pipeline("p")
    pipeline.source("in", ToySource(ToyFeed())).sink("s", DeltaAppend("t"))
    place, ledger = Place("s3://bucket/data", unsafe.options), Ledger(LocalStore(tmp_path / "p"), "p")
    ledger.start()
    assert "s3://bucket/data/t" in refusal_of(lambda: check_targets(pipeline.graph(place), ledger, place))
    assert ledger.tried() == frozenset()


def test_doctor_says_of_each_store_of_tables_whether_it_keeps_conditions(unsafe, tmp_path):
    ledger = Ledger(LocalStore(tmp_path / "p"), "p")
    settings = SimpleNamespace(storage_options=unsafe.options)
    target = Target("p", "p", settings, ledger, None)
    table = PublishedTable(uri="s3://bucket/data/t", version=3, log_hash="ab" * 32, rows=1)
    published = {7: Published(**stamp("a"), id=7, tables={"t": table, "u": table})}
    (found,) = verify_tables._stores(target, published)
    assert (found.check, found.state) == ("store s3://bucket", "bad")
    unsafe.treat("kept")
    assert [each.state for each in verify_tables._stores(target, published)] == ["ok"]


def test_a_create_that_the_store_refuses_later_is_no_reason_to_try_again(safe):
    ledger = open_ledger("s3://bucket/root", "orders", safe.options)
    ledger.start()
    safe.treat("refused")
    refusal_of(lambda: ledger.store.create("checkpoints/00000001/plan.json", b"{}"))


def test_what_a_crash_left_of_trying_it_out_is_no_damage(safe):
    safe.put("root/orders/clock/abc.probe", b"the first")
    ledger = open_ledger("s3://bucket/root", "orders", safe.options)
    assert ledger.identity() is None
    assert ledger.start().name == "orders"


def test_anything_else_without_an_identity_is_damage_as_before(safe):
    safe.put("root/orders/checkpoints/00000001/plan.json", b"{}")
    with pytest.raises(Corrupt, match=r"pipeline\.json is missing"):
        open_ledger("s3://bucket/root", "orders", safe.options).start()


def context(server):
    return SinkContext("p", "u1", "s", Place("s3://bucket/data", server.options))


def test_a_table_there_is_refused_before_anything_is_planned_for_it(unsafe):
    sink = DeltaAppend("t")
    assert "s3://bucket/data/t" in refusal_of(lambda: sink.check(context(unsafe)))
    assert unsafe.names == []


def test_a_table_on_a_store_that_keeps_conditions_is_not(safe):
    DeltaAppend("t").check(context(safe))
    assert safe.names == []


def test_a_table_whose_writers_have_a_lock_of_their_own_needs_no_condition(unsafe):
    options = unsafe.options | {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}
    from tidegate.connectors.delta.sink.table import refuse_unsafe_store
    from tidegate.delta import Location

    refuse_unsafe_store(Location("s3://bucket/data/t", options))


def test_a_condition_that_the_options_turn_off_is_told(safe):
    options = safe.options | {"aws_conditional_put": "disabled"}
    said = refusal_of(Ledger(ObjectStore("s3://bucket/root/orders", options), "orders").start)
    assert "storage_options" in said
