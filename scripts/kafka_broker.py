"""A broker of Apache Kafka in KRaft mode, on loopback, from the jars of `scripts/build-kafka`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import sessions
from waiting import until

_SCRIPT = Path(__file__).with_name("build-kafka")
VERSION = re.findall(r"^version=(.*)", _SCRIPT.read_text(), re.MULTILINE)[0]

#: Replication and transactions with one node; a node that was killed is taken for dead after 3 s, and not after 9.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
num.partitions=4
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
log.segment.bytes=67108864
"""


def jars_folder() -> Path:
    """Returns the folder where `scripts/build-kafka` keeps the jars."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / f"llmbeam/kafka-{VERSION}/jars"


def fetch_jars() -> Path:
    """Returns the folder of the jars, fetched if they are missing.

    Raises:
        RuntimeError: They cannot be fetched.
    """
    fetched = subprocess.run([_SCRIPT], capture_output=True, text=True)
    if fetched.returncode != 0:
        raise RuntimeError(f"scripts/build-kafka failed: {fetched.stderr.strip()}")
    return Path(fetched.stdout.strip())


class Broker:
    """A broker, which ends with this process.

    Args:
        jars: Folder of the jars.
        directory: Folder of its data and its log; it is empty.
    """

    def __init__(self, jars: Path, directory: Path) -> None:
        self._jars, self._directory = jars, directory
        self._port, controller = _free_ports()
        self.servers = f"127.0.0.1:{self._port}"
        self._process: sessions.Leader | None = None
        properties = {"port": self._port, "controller": controller, "directory": directory}
        self._config.write_text(_PROPERTIES.format(**properties))
        # An id is 16 bytes in base64.
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", "bGxtYmVhbWxsbWJlYW1sbA", "-c", self._config),
            check=True,
            capture_output=True,
        )

    @property
    def _config(self) -> Path:
        return self._directory / "server.properties"

    @property
    def process_id(self) -> int:
        """Id of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        with (self._directory / "broker.log").open("ab") as log:
            self._process = sessions.start(self._java("kafka.Kafka", self._config), stdout=log, stderr=log)
        until(self._serves, lambda: f"a broker at {self.servers}; see '{self._directory}/broker.log'", 60)

    def stop(self) -> None:
        """Ends it, in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it with kill -9."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _serves(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        assert self._process.poll() is None, f"the broker has ended; see '{self._directory}/broker.log'"
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _java(self, name: str, *arguments: str | Path) -> Sequence[str | Path]:
        memory = ["-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *memory, *log, "-cp", f"{self._jars}/*", name, *arguments]


def create_topics(servers: str, partitions: int, *topics: str, config: Mapping[str, str] | None = None) -> None:
    """Creates topics.

    Args:
        servers: Address of the broker.
        partitions: Number of their partitions.
        topics: Their names.
        config: Their settings.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    new = [NewTopic(topic, num_partitions=partitions, config={**(config or {})}) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(30)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
