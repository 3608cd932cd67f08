"""A silent, hanging or failed process is named, and this process exits in time."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import pytest

from hybridlm.multiprocess import abort_report
from hybridlm.multiprocess.environment import EXIT_PEER_LOST
from hybridlm.multiprocess.heartbeat import Heartbeat, HeartbeatRecord


class Store:
    """`KeyValues` within this process alone."""

    address = "127.0.0.1:9"

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}
        self.dead = False

    def set(self, name: str, value: bytes) -> None:
        if self.dead:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE")
        self.said[name] = value

    def list(self, folder: str) -> dict[str, bytes]:
        return {name.split("/")[1]: value for name, value in self.said.items() if name.startswith(f"{folder}/")}

    def sign(self, beat: int, epoch: int = 0, busy: str = "") -> None:
        """Process 2 prints something."""
        self.said["alive/2"] = json.dumps(HeartbeatRecord(beat, "process 2 (pid 7 on host)", epoch, busy)).encode()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def ended() -> list[int]:
    return []


@pytest.fixture
def heartbeat(store: Store, ended: list[int]) -> Iterator[Heartbeat]:
    item = Heartbeat(store, 1, 1.0, end=ended.append)  # type: ignore[arg-type]  # a stand-in
    yield item
    item.stop()


def beating(store: Store, seconds: float, until: Callable[[], object], epoch: int = 0, busy: str = "") -> None:
    end, beat = time.monotonic() + seconds, 0
    while time.monotonic() < end and not until():
        beat += 1
        store.sign(beat, epoch, busy)
        time.sleep(0.05)


def end(statuses: list[int]) -> list[int]:
    """Wait for the end of the process; return its status."""
    begun = time.monotonic()
    while not statuses and time.monotonic() < begun + 5:
        time.sleep(0.05)
    return statuses


@pytest.mark.slow
def test_a_process_with_messages_is_alive(store: Store, heartbeat: Heartbeat, ended: list[int]) -> None:
    beating(store, 1.5, lambda: ended)
    assert not ended


def test_a_silent_process_is_named(store: Store, heartbeat: Heartbeat, ended: list[int], capsys: pytest.CaptureFixture):
    store.sign(1)
    assert end(ended) == [EXIT_PEER_LOST]
    assert "error: process 2 (pid 7 on host) has not answered for" in capsys.readouterr().err


def test_a_process_that_never_sends_is_named(store: Store, capsys: pytest.CaptureFixture) -> None:
    """A process that died before loading is named; non-members are not expected."""
    ended: list[int] = []
    heartbeat = Heartbeat(store, 1, 1.0, range(3), ended.append)  # type: ignore[arg-type]  # a stand-in
    begun = time.monotonic()
    while not ended and time.monotonic() < begun + 5:
        store.said["alive/0"] = json.dumps(HeartbeatRecord(int(1000 * time.monotonic()), "process 0", 0, "")).encode()
        time.sleep(0.05)
    heartbeat.stop()
    assert ended == [EXIT_PEER_LOST] and 0.4 < time.monotonic() - begun < 1.0
    assert "error: process 2 has not answered for" in capsys.readouterr().err


def test_where_process_0_no_longer_listens_jax_ends_the_others_for_that(store: Store, heartbeat: Heartbeat) -> None:
    assert re.fullmatch(r"process 0 has ended, or its host is gone; process 1 \(.*\) ends", heartbeat.reason() or "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.address = f"127.0.0.1:{server.getsockname()[1]}"
        assert heartbeat.reason() is None
    heartbeat.failure = "process 2 has ended: BroadcastError: damaged"
    assert (heartbeat.reason() or "").startswith("process 2 has ended: BroadcastError: damaged; process 1 (")


@pytest.mark.parametrize(("reason", "status", "message"), [("'gone'", 3, "error: gone\n"), ("None", -6, "")])
def test_an_aborted_process_gives_the_reason(reason: str, status: int, message: str) -> None:
    """The abort comes from a thread unknown to Python, as in JAX's client."""
    script = f"""
import importlib.util, ctypes, time
spec = importlib.util.spec_from_file_location("abort_report", {abort_report.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.report_at_abort(lambda: {reason}, 3)
thread, c = ctypes.c_void_p(), ctypes.CDLL(None)
c.pthread_create(ctypes.byref(thread), None, c.abort, None)
time.sleep(60)
"""
    run = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (status, message)


@pytest.mark.slow
@pytest.mark.parametrize(("busy", "expected"), [("", [EXIT_PEER_LOST]), ("compiling", [])])
def test_a_lagging_process_is_named_unless_it_compiles(
    store: Store, heartbeat: Heartbeat, ended: list[int], busy: str, expected: list[int], capsys: pytest.CaptureFixture
) -> None:
    heartbeat.epoch = 5
    beating(store, 2.0, lambda: ended, epoch=3, busy=busy)
    assert ended == expected
    matches = "process 2 (pid 7 on host) answers, but has stood at message 3" in capsys.readouterr().err
    assert matches == bool(expected)


def test_where_the_store_does_not_answer_process_0_is_lost(
    store: Store, heartbeat: Heartbeat, ended: list[int], capsys: pytest.CaptureFixture
) -> None:
    store.dead = True
    assert end(ended) == [EXIT_PEER_LOST] and "process 0 has not answered" in capsys.readouterr().err


def test_the_message_of_an_ended_process_is_the_reason(store: Store, heartbeat: Heartbeat, ended: list[int]) -> None:
    store.said["failed/2"] = b"process 2 has ended: BroadcastError: damaged"
    heartbeat.wait_for_cause()
    assert heartbeat.failure == "process 2 has ended: BroadcastError: damaged"
    heartbeat.report_failure("because")
    assert store.said["failed/1"] == b"process 1 has ended: because"
