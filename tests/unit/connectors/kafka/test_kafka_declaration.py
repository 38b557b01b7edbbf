"""Kafka: what a declaration and a connection say, without a broker."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.kafka import KafkaLogin
from tidegate.connectors.kafka.avro.values import fitting
from tidegate.connectors.kafka.position import spread
from tidegate.connectors.kafka.reading import JARS
from tidegate.connectors.kafka.topic import SourceTopic
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.sources import Kafka, SourceContext
from tidegate.spark.jars import jar_list
from tidegate.testing.source_contract import MemoryBlobs

CANARY = 'canary "\\ secret'


def kafka(**changes: Any) -> Kafka:
    return Kafka(**({"topic": "orders", "servers": "broker:9092", "schema": "id long"} | changes))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": ""}, "topic is ''"),
        ({"topic": "a b"}, "topic is 'a b'"),
        ({"topic": None}, "topic is None"),
        ({"servers": None}, "servers is missing"),
        ({"servers": " "}, "servers is ' '"),
        ({"servers": ["broker:9092"]}, "it must be text"),
        ({"servers": "sasl_plaintext://me:secret@broker:9092"}, "servers contains a login"),
        ({"value": "xml"}, "value is 'xml'"),
        ({"schema": None}, "schema is missing"),
        ({"schema": "id lnog"}, "did you mean 'long'?"),
        ({"schema": "id long, _Key string"}, "the column name '_key' is reserved"),
        ({"schema": "id long, _corrupt_record string"}, "the column name '_corrupt_record' is reserved"),
        ({"value": "string"}, "schema is for value='json' and 'avro'"),
        (
            {"value": "string", "schema": None, "on_type": "rescue"},
            "on_new_column and on_type are for value='json' and 'avro'",
        ),
        ({"value": "bytes", "schema": None, "on_corrupt": "keep"}, "any bytes will do"),
        ({"value": "avro"}, "registry is missing"),
        ({"registry": "http://registry:8081"}, "registry is for value='avro'"),
        ({"value": "avro", "registry": "http://me:secret@registry:8081"}, "registry contains a login"),
        ({"key": "json"}, "key is 'json'"),
        ({"metadata": "offset"}, "metadata is 'offset'; it must be a list"),
        ({"metadata": ["offset", "offset"]}, "metadata is"),
        ({"metadata": ["ofset"]}, "some of timestamp, partition, offset, headers"),
        ({"start": "beginning"}, "start is 'beginning'"),
        ({"start": datetime(2026, 1, 1)}, "a time without a zone"),  # noqa: DTZ001
        ({"start": {}}, "start is {}"),
        ({"start": {0: -1}}, "start is {0: -1}"),
        ({"start": {"0": 1}}, "start is {'0': 1}"),
        ({"max_offsets": 0}, "max_offsets is 0"),
        ({"max_offsets": True}, "max_offsets is True"),
        ({"on_corrupt": "drop"}, "on_corrupt is 'drop'"),
        ({"on_new_column": "drop"}, "on_new_column is 'drop'"),
        ({"tombstones": "drop"}, "tombstones is 'drop'; it must be 'refuse' or 'skip' or 'keep'"),
        ({"on_expired": "keep"}, "on_expired is 'keep'"),
        ({"allow_compacted": "yes"}, "allow_compacted is 'yes'"),
        ({"group": ""}, "group is ''"),
    ],
)
def test_bad_declarations_are_told(arguments: dict[str, Any], said: str) -> None:
    problems = kafka(**arguments).problems()
    assert len(problems) == 1, problems
    assert said in problems[0]
    assert "secret" not in problems[0]


def test_the_description_is_plain_and_complete() -> None:
    arguments: dict[str, Any] = {"metadata": ("offset",), "connection": "events", "key": "string", "group": "watchers"}
    for start in ("latest", datetime(2026, 1, 1, tzinfo=UTC), {0: 17}):
        source = kafka(**arguments, start=start)
        assert source.problems() == []
        described = source.describe()
        assert json.loads(json.dumps(described)) == described
        assert set(described) == {"kind", *vars(source)}


def test_a_position_of_another_source_is_refused() -> None:
    context = SourceContext("shop", "orders", Place("/data"), MemoryBlobs())
    with pytest.raises(Invalid, match="cannot continue from position") as error:
        kafka(group="watchers").on_checkpoint_completed({"rowid": 3}, context)
    assert error.value.reason == "FOREIGN_POSITION"


# -- how much of each partition ------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 10**9), min_size=1), st.integers(1, 10**9))
def test_a_bound_is_used_up_and_every_partition_gives_its_part(waiting: dict[int, int], bound: int) -> None:
    taken = spread(waiting, bound)
    total = sum(waiting.values())
    assert sum(taken.values()) == min(total, bound)
    assert all(0 <= taken[at] <= count for at, count in waiting.items())
    if bound >= len(waiting):
        assert min(taken.values()) >= 1, "none waits for ever"
    assert all(abs(taken[at] - count * min(bound, total) / total) <= len(waiting) for at, count in waiting.items())


def test_without_a_bound_all_is_taken() -> None:
    assert spread({0: 5, 1: 7}, None) == {0: 5, 1: 7}
    assert spread({}, 10) == {}


# -- logins --------------------------------------------------------------------------------------------


def login(**options: str) -> KafkaLogin:
    connections = {f"events.{name.replace('__', '.')}": value for name, value in options.items()}
    return KafkaLogin.resolve("broker:9092", "events", Place("/data", connections=connections))


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.Plain"), ("SCRAM-SHA-256", "scram.Scram"), ("SCRAM-SHA-512", "scram.Scram")],
)
def test_a_password_becomes_what_java_takes_with_its_quotes_escaped(mechanism: str, module: str) -> None:
    made = login(
        sasl__mechanism=mechanism, security__protocol="SASL_SSL", sasl__username="me", sasl__password=CANARY
    ).for_java()
    assert made == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
        'username="me" password="canary \\"\\\\ secret";',
    }


def test_certificates_go_to_workers_as_text(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-- {name} --")
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----")
    made = login(
        security__protocol="SSL",
        ssl__ca__location=str(tmp_path / "ca"),
        ssl__certificate__location=str(tmp_path / "certificate"),
        ssl__key__location=str(tmp_path / "key"),
        ssl__key__password="x",
        ssl__endpoint__identification__algorithm="none",
    ).for_java()
    assert made == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-- ca --",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-- certificate --",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
        "ssl.key.password": "x",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sasl__mechanism": "GSSAPI"}, "sasl.mechanism is 'GSSAPI'"),
        ({"sasl__pasword": "canary"}, "option 'sasl.pasword' has no equivalent"),
        ({"enable__ssl__certificate__verification": "false"}, "'enable.ssl.certificate.verification' has no"),
        ({"ssl__key__pem": "-----BEGIN RSA PRIVATE KEY----- canary"}, "the key in ssl.key.pem is not in PKCS#8"),
        ({"ssl__ca__location": "/nowhere/ca.pem"}, "ssl.ca.location of a connection cannot be read: No such file"),
    ],
)
def test_what_only_one_of_the_two_clients_can_do_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said) as error:
        login(**options).for_java()
    assert error.value.reason == "BAD_OPTION"
    assert "canary" not in str(error.value)


def test_an_option_that_librdkafka_does_not_know_is_refused_without_its_value() -> None:
    with pytest.raises(Invalid, match=r"No such configuration property: \"fetch.min.bites\"") as error:
        SourceTopic("orders", login(fetch__min__bites="canary")).state(read_settings=False)
    assert "canary" not in str(error.value)


def test_a_connection_without_brokers_is_refused() -> None:
    place = Place("/data", connections={"events.sasl.username": "me"})
    with pytest.raises(Invalid, match="connection 'events' names no brokers"):
        KafkaLogin.resolve(None, "events", place)
    with pytest.raises(Invalid, match="connection 'evens' does not exist"):
        KafkaLogin.resolve(None, "evens", place)


def test_no_password_is_in_a_repr_or_in_a_masked_text() -> None:
    found = login(sasl__username="me-myself", sasl__password=CANARY)
    assert CANARY not in repr(found)
    assert found.masked(f"broker:9092 says {CANARY} to me-myself") == "broker:9092 says *** to ***"


# -- jars and libraries --------------------------------------------------------------------------------


def test_the_jars_that_an_error_names_are_those_of_the_list() -> None:
    assert set(JARS) == {jar.name for jar in jar_list() if jar.optional and jar.name != "postgresql"}


@pytest.mark.parametrize(
    ("module", "asked", "command"),
    [
        ("confluent_kafka", "tidegate.connectors.kafka.cluster.import_kafka", "pip install 'tidegate[kafka]'"),
        ("fastavro", "tidegate.connectors.kafka.avro.registry.import_fastavro", "pip install 'tidegate[avro]'"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    module: str, asked: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    home, _, name = asked.rpartition(".")
    function = getattr(__import__(home, fromlist=[name]), name)
    with pytest.raises(Invalid, match="is not installed") as error:
        function()
    assert error.value.help == command


# -- values of Avro ------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "kind", "fitted"),
    [
        (None, pa.int64(), None),
        (5, pa.int32(), 5),
        (5, pa.float64(), 5.0),
        (1.5, pa.float64(), 1.5),
        ("é", pa.string(), "é"),
        (UUID(int=1), pa.string(), "00000000-0000-0000-0000-000000000001"),
        (b"\xff", pa.binary(), b"\xff"),
        (True, pa.bool_(), True),
        (Decimal("1.50"), pa.decimal128(10, 1), Decimal("1.5")),
        (7, pa.decimal128(10, 2), Decimal("7.00")),
        (NOON, pa.timestamp("us", "UTC"), NOON),
        (NOON.replace(tzinfo=None), pa.timestamp("us"), NOON.replace(tzinfo=None)),
        (date(2026, 3, 1), pa.date32(), date(2026, 3, 1)),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ({"a": 1, "more": 2}, pa.struct({"a": pa.int64(), "b": pa.string()}), {"a": 1, "b": None}),
    ],
)
def test_a_value_that_fits_its_column_is_taken_as_it_is(value: Any, kind: pa.DataType, fitted: Any) -> None:
    assert fitting(value, kind) == fitted
    pa.array([fitting(value, kind)], kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31, pa.int32()),
        (1.0, pa.int64()),
        (True, pa.int64()),
        (1, pa.bool_()),
        ("5", pa.int64()),
        (5, pa.string()),
        ("x", pa.binary()),
        (Decimal("1.05"), pa.decimal128(10, 1)),
        (Decimal("1e9"), pa.decimal128(10, 2)),
        (1.5, pa.decimal128(10, 2)),
        (1772366400000, pa.timestamp("us", "UTC")),
        (NOON, pa.timestamp("us")),
        (NOON.replace(tzinfo=None), pa.timestamp("us", "UTC")),
        (NOON, pa.date32()),
        ([1, "2"], pa.list_(pa.int64())),
        ({"a": "1"}, pa.struct({"a": pa.int64()})),
        ("a", pa.struct({"a": pa.int64()})),
    ],
)
def test_a_value_that_would_be_changed_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises((TypeError, ValueError, ArithmeticError)):
        fitting(value, kind)
