"""A real Kafka broker on loopback, for tests and for `make kafka`: one node that is also its own controller (KRaft).

Its jars are fetched on first use, by the exact list beside this module; `make test` needs them, `make setup` does not.

    with kafka() as broker:
        broker.create_topic("orders", partitions=2)
        broker.send("orders", [("key", "value")])
        broker.kill()     # as by kill -9
        broker.start()    # on the same data, at the same address
        assert [record.value for record in broker.read("orders")] == [b"value"]

Two listeners: `servers` lets everybody do everything; `servers_with_login` is there if logins were given, asks for one
of them (SASL_PLAINTEXT, PLAIN, or SCRAM-SHA-512 after `add_scram_login`), and lets it do only what `allow` allows. With
the properties `with_tls(folder)` it speaks TLS.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.postgres import die_with_parent
from tests.kit.waiting import eventually
from tidegate.cli.up.home import any_port
from tools import setup

__all__ = ["Broker", "KafkaRecord", "broker_jars", "group_offsets", "kafka", "kafka_broker", "login_of", "with_tls"]

JARS = setup.ROOT / ".cache/kafka"
HEAP = "512m"
START_TIMEOUT_S = 120.0
READER, READERS_PASSWORD = "reader", "canary-of-a-password"
"""A login of the broker that tests share, which may do nothing unless `allow` says so."""
CLUSTER_ID = "dGlkZWdhdGUtdGVzdHM0Mg"
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed comes back only when its controller has given up the old one.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # 128 MB of the heap unless told otherwise.
    "log.cleaner.dedupe.buffer.size": "4194304",
    # So that tests of retention and compaction wait a moment, not five minutes.
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "500",
}


@dataclass(frozen=True)
class KafkaRecord:
    """A record as a consumer gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def broker_jars() -> Path:
    """Return the folder of the broker's jars, fetched if they are not there. Raises `tools.setup.Problem`."""
    JARS.parent.mkdir(exist_ok=True)
    with setup.locked(JARS.parent / "kafka.lock"):
        setup.fetch_jars(Path(__file__).with_name("kafka_jars.toml"), JARS)
    return JARS


class Broker:
    """One broker in a process of its own: it can be stopped, killed and started again on the same data."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        logins: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._jars = broker_jars()
        self._process: subprocess.Popen[bytes] | None = None
        self.servers = f"127.0.0.1:{port or any_port()}"
        self.servers_with_login = f"127.0.0.1:{any_port()}" if logins else None
        controller = f"127.0.0.1:{any_port()}"
        listeners = f"PLAINTEXT://{self.servers}"
        told = dict(PROPERTIES)
        if logins:
            listeners += f",LOGIN://{self.servers_with_login}"
            known = " ".join(f'user_{name}="{password}"' for name, password in logins.items())
            told |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "listener.name.login.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "listener.name.login.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
                ),
            }
        told |= {
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(folder / "data"),
        }
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in (told | dict(properties or {})).items()))

    # -- its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, and wait until it answers. On the same data if it has run before."""
        assert self._process is None, "it runs"
        if not (self._folder / "data/meta.properties").exists():
            format = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._settings)]
            subprocess.run(self._java("kafka.tools.StorageTool", *format), check=True, capture_output=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        eventually("the broker answers", self._answers, START_TIMEOUT_S)

    def stop(self) -> None:
        """Let it shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as by kill -9."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let it neither answer nor hang up, as a machine that is overloaded."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        eventually("it has stopped", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _java(self, main: str, *arguments: str) -> list[str]:
        java = setup.find_java()
        assert java is not None, "there is no Java"
        options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [java, *options, "-cp", f"{self._jars}/*", main, *arguments]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the broker ended:\n{self.log[-4000:]}"
        from confluent_kafka import KafkaException

        try:
            return bool(self.admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal_number)
            process.wait(60)

    # -- what is in it -----------------------------------------------------------------------------

    def admin(self) -> Any:
        """Return a new client for administration, which may do everything."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create_topic(self, topic: str, partitions: int = 1, **config: str | int) -> None:
        """Create a topic, and wait until each partition has a leader. Dots of a setting's name are underscores here:
        `create_topic("orders", cleanup_policy="compact")`.
        """
        from confluent_kafka.admin import NewTopic

        admin = self.admin()
        told = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=told)
        admin.create_topics([new])[topic].result(60)
        eventually(f"{topic} has leaders", lambda: self._has_leaders(admin, topic, partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it has gone, also for clients that know where it was: they may get an answer
        for a while after it is listed no more."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin, older = self.admin(), self.admin()
        asked = TopicPartition(topic, 0)

        def answers() -> bool:
            try:
                older.list_offsets({asked: OffsetSpec.latest()}, request_timeout=10)[asked].result(30)
            except KafkaException:
                return False
            return True

        eventually(f"{topic} is known", answers)
        admin.delete_topics([topic])[topic].result(60)
        eventually(f"{topic} has gone", lambda: topic not in admin.list_topics(timeout=10).topics and not answers())

    def change_topic(self, topic: str, **config: str | int) -> None:
        """Change settings of a topic, and wait until the broker tells the new ones."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        told = {key.replace("_", "."): str(value) for key, value in config.items()}
        changes = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in told.items()]
        admin, asked = self.admin(), ConfigResource(ConfigResource.Type.TOPIC, topic)
        changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        admin.incremental_alter_configs([changed])[changed].result(60)

        def is_changed() -> bool:
            known = admin.describe_configs([asked])[asked].result(60)
            return all(known[key].value == value for key, value in told.items())

        eventually(f"{topic} has its new settings", is_changed)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have so many partitions from now on."""
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)
        eventually(f"{topic} has leaders", lambda: self._has_leaders(admin, topic, total))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete what lies before an offset of each partition, as retention would."""
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        admin = self.admin()  # kept: when it goes, it answers nothing any more
        for done in admin.delete_records(wanted).values():
            done.result(60)

    def allow(self, user: str, kind: str, name: str, *operations: str, prefix: bool = False) -> None:
        """Allow a login something: `allow("reader", "TOPIC", "orders", "READ", "DESCRIBE")`."""
        from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        allowed = [
            AclBinding(
                ResourceType[kind], name, pattern, f"User:{user}", "*", AclOperation[each], AclPermissionType.ALLOW
            )
            for each in operations
        ]
        admin = self.admin()
        for done in admin.create_acls(allowed).values():
            done.result(60)

    def add_scram_login(self, user: str, password: str) -> None:
        """Let somebody log in by SCRAM-SHA-512."""
        from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin = self.admin()
        wanted = [UserScramCredentialUpsertion(user, how, password.encode())]
        for done in admin.alter_user_scram_credentials(wanted).values():
            done.result(60)

    def producer(self, **config: str | int) -> Any:
        """Return a new producer. Dots of an option's name are underscores here: `transactional_id="mine"`."""
        from confluent_kafka import Producer

        told = {key.replace("_", "."): value for key, value in config.items()}
        return Producer({"bootstrap.servers": self.servers, "log_level": 0, "linger.ms": 5} | told)

    def send(
        self,
        topic: str,
        records: Iterable[tuple[str | bytes | None, str | bytes | None]],
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        producer: Any = None,
    ) -> None:
        """Send keys and values, and wait until the broker has them. With a producer given: in its transaction."""
        own = producer or self.producer(partitioner="murmur2_random")
        errors: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        more |= {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        for key, value in records:
            own.produce(topic, value=value, key=key, headers=list(headers), on_delivery=delivered, **more)
            own.poll(0)
        left = own.flush(60)
        assert left == 0, f"{left} records were not delivered"
        assert not errors, errors[:3]

    def read(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """Return all that can be read now, by partition and offset: of transactions, only what is committed."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

        partitions = sorted(self.admin().list_topics(topic, timeout=30).topics[topic].partitions)
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "log_level": 0,
            }
        )
        records, at_end = [], set[int]()
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            while len(at_end) < len(partitions):
                message = consumer.poll(60)
                assert message is not None, f"nothing from {topic} within 60 s"
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    at_end.add(message.partition())
                    continue
                records.append(
                    KafkaRecord(
                        partition=message.partition(),
                        offset=message.offset(),
                        key=message.key(),
                        value=message.value(),
                        headers=tuple(message.headers() or ()),
                        timestamp_ms=message.timestamp()[1],
                    )
                )
        finally:
            consumer.close()
        return sorted(records, key=lambda record: (record.partition, record.offset))

    @staticmethod
    def _has_leaders(admin: Any, topic: str, partitions: int) -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        return len(found.partitions) == partitions and all(each.leader >= 0 for each in found.partitions.values())


def group_offsets(broker: Broker, group: str) -> dict[int, int]:
    """Return how far a consumer group has come, by partition of its one topic."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    admin = broker.admin()

    def ask() -> dict[int, int] | None:
        try:
            found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
        except KafkaException as error:
            if error.args[0].retriable():
                return None
            raise
        return {each.partition: each.offset for each in found.topic_partitions}

    offsets: dict[int, int] = eventually(f"the offsets of {group} are told", ask)
    return offsets


@contextlib.contextmanager
def kafka(
    *,
    port: int | None = None,
    properties: Mapping[str, str] | None = None,
    logins: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """A broker that runs, with data of its own that go with it."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    try:
        broker = Broker(folder, port=port, properties=properties, logins=logins)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def login_of(broker: Broker, **changes: str) -> dict[str, str]:
    """Return the setting `connections` with a connection `events`, by which READER logs in. Dots of an option's name
    are underscores here.
    """
    options = {
        "bootstrap.servers": str(broker.servers_with_login),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": READER,
        "sasl.password": READERS_PASSWORD,
    } | {name.replace("_", "."): value for name, value in changes.items()}
    return {f"events.{name}": value for name, value in options.items()}


def with_tls(folder: Path) -> dict[str, str]:
    """Return the properties of a broker whose listener with logins speaks TLS. Clients trust `folder/ca.pem`."""
    key, certificate = folder / "server.key", folder / "ca.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    both = folder / "server.pem"
    both.write_text(key.read_text() + certificate.read_text())
    protocols = PROPERTIES["listener.security.protocol.map"].replace("SASL_PLAINTEXT", "SASL_SSL")
    return {
        "listener.security.protocol.map": protocols,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
    }


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    """One broker for all tests of a process, which use topics of their own. Skipped only where it cannot be fetched."""
    try:
        broker_jars()
    except setup.Problem as problem:
        pytest.skip(f"no Kafka broker to test with: {problem}")
    with kafka(logins={READER: READERS_PASSWORD}) as broker:
        yield broker


def play(arguments: Sequence[str] | None = None) -> int:
    """Run a broker on a fixed port until Ctrl-C: `make kafka`."""
    parser = argparse.ArgumentParser(prog="make kafka", description=play.__doc__)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--fetch", action="store_true", help="only fetch its jars")
    told = parser.parse_args(arguments)
    try:
        broker_jars()
    except setup.Problem as problem:
        print(f"kafka: {problem}", file=sys.stderr)
        return 3
    if told.fetch:
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), kafka(port=told.port) as broker:
        print(f"kafka: a broker listens on {broker.servers} (process {broker.pid}); Ctrl-C ends it.", flush=True)
        threading.Event().wait()
    print("kafka: ended; nothing of it is kept.", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    sys.exit(play())
