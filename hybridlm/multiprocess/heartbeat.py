"""Heartbeats between processes; a process exits when a peer stops responding.

No exception reaches a step that waits inside the runtime, so a thread ends the process. A lagging peer sends heartbeats
but receives no messages.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import jax

from hybridlm.multiprocess.abort_report import is_unreachable, report_at_abort
from hybridlm.multiprocess.environment import (
    ADDRESS,
    COUNT,
    EXIT_PEER_LOST,
    MAX_TIMEOUT,
    NUMBER,
    peer_timeout,
    set_peer_timeout,
)
from hybridlm.multiprocess.messages import KeyValues

BEATS = 10.0
"""Heartbeats within the timeout, at least one per second."""


class HeartbeatRecord(NamedTuple):
    """One heartbeat of a process, with its host.

    Attributes:
        busy: work of unbounded duration (compilation), or "".
    """

    beat: int
    name: str
    epoch: int
    busy: str


class Heartbeat:
    """Sends heartbeats and watches the other processes.

    Args:
        timeout: seconds of a silent or lagging process until all others exit; they notice after half.
        members: initial processes; others count from their first heartbeat.
        end: exits with a status; replaced in tests.

    Attributes:
    """

    def __init__(
        self,
        store: KeyValues,
        process: int,
        timeout: float,
        members: Iterable[int] = (),
        end: Callable[[int], object] = os._exit,
    ):
        self._store, self._process, self._end = store, process, end
        self._limit = timeout / 2
        self._interval = min(1.0, timeout / BEATS)
        self._name = f"process {process} (pid {os.getpid()} on {socket.gethostname()})"
        self.epoch, self.busy = 0, ""
        self.failure: str | None = None
        self._records: dict[int, HeartbeatRecord] = {}
        self._last_seen = dict.fromkeys(members, time.monotonic())
        self._caught_up: dict[int, float] = {}
        self._stopped = threading.Event()
        self._last_answer = time.monotonic()
        for run in (self._send_loop, self._check_loop):
            threading.Thread(target=run, name=f"hybridlm-heartbeat{run.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Stop watching: this process has finished its work."""
        self._stopped.set()

    def reason(self) -> str | None:
        """Return why JAX aborts: a failure, the end of process 0, or silence."""
        cause = self.failure
        if cause is None and not self._stopped.is_set():
            if self._process != 0 and is_unreachable(self._store.address):
                cause = f"{self._name_of(0)} has ended, or its host is gone"
            elif (silent := self._silent(self._limit / 2)) is not None:
                cause = silent[1]
        return None if cause is None else f"{cause}; {self._name} ends"

    def report_failure(self, message: str) -> None:
        self._publish_failure(self._process, f"process {self._process} has ended: {message}")

    def wait_for_cause(self) -> None:
        """Return why a joint step failed: a published failure, or a silent process."""
        end = time.monotonic() + self._limit / 2
        while self.failure is None and time.monotonic() < end:
            silent = self._silent(3 * self._interval)
            if silent is not None:
                self._publish_failure(*silent)
                self.failure = silent[1]
            time.sleep(self._interval / 4)

    def _publish_failure(self, other: int, message: str) -> None:
        """Publish why a process cannot go on; otherwise others see only silence."""
        with suppress(jax.errors.JaxRuntimeError):
            self._store.set(f"failed/{other}", message.encode())

    def _send_loop(self) -> None:
        beat = 0
        while not self._stopped.is_set():
            beat += 1
            try:
                record = HeartbeatRecord(beat, self._name, self.epoch, self.busy)
                self._store.set(f"alive/{self._process}", json.dumps(record).encode())
                self._update(
                    {
                        int(number): HeartbeatRecord(*json.loads(record))
                        for number, record in self._store.list("alive").items()
                    }
                )
                failed = {int(number): text.decode() for number, text in self._store.list("failed").items()}
                self._last_answer = time.monotonic()
                self.failure = self.failure or next(
                    (why for other, why in failed.items() if other != self._process), None
                )
            except jax.errors.JaxRuntimeError:
                pass  # no answer, timed by `_check_loop`
            self._stopped.wait(self._interval)

    def _update(self, records: dict[int, HeartbeatRecord]) -> None:
        now = time.monotonic()
        latest = max((record.epoch for record in records.values()), default=0)
        for other, record in records.items():
            if record != self._records.get(other):
                self._last_seen[other] = now
            previous = self._records.get(other)
            if previous is None or record.busy or record.epoch == latest or record.epoch != previous.epoch:
                self._caught_up[other] = now
        self._records = records

    def _check_loop(self) -> None:
        since = None
        while not self._stopped.wait(self._interval):
            unresponsive = self._silent(self._limit) or self._lagging()
            since = since or (None if self.failure is None else time.monotonic())
            if unresponsive is not None:
                self._exit_now(unresponsive[1])
            elif self.failure is not None and since is not None and time.monotonic() - since > self._limit / 4:
                self._exit_now(self.failure)  # this process does not stop waiting by itself

    def _exit_now(self, reason: str) -> None:
        if not self._stopped.is_set():
            print(f"error: {reason}; {self._name} ends", file=sys.stderr, flush=True)
            self.failure = self.failure or reason  # no reason for JAX to abort this process
            self._stopped.set()
            if self._process == 0:
                time.sleep(self._limit / 4)  # the others read here why they exit
            self._end(EXIT_PEER_LOST)

    def _silent(self, seconds: float) -> tuple[int, str] | None:
        now = time.monotonic()
        quiet = now - self._last_answer
        if quiet > seconds:  # no answer from the store, which is in process 0
            return 0, self._describe_silence(0, quiet)
        for other, since in list(self._last_seen.items()):  # a copy: another thread adds to it
            quiet = now - since
            if other != self._process and quiet > seconds:
                return other, self._describe_silence(other, quiet)
        return None

    def _describe_silence(self, other: int, seconds: float) -> str:
        named = self._name_of(other)
        return f"{named} has not answered for {seconds:.0f} s: it was killed or stopped, or its host is gone"

    def _name_of(self, other: int) -> str:
        record = self._records.get(other)
        return f"process {other}" if record is None else record.name

    def _lagging(self) -> tuple[int, str] | None:
        now = time.monotonic()
        for other, record in self._records.items():
            lag = now - self._caught_up[other]
            if lag > self._limit and now - self._last_seen[other] < self._limit / 2:
                return other, (
                    f"{record.name} answers, but has stood at message {record.epoch} for {lag:.0f} s, while "
                    "others are past it"
                )
        return None


_started: list[Heartbeat] = []


def start_heartbeat() -> None:
    """Start the heartbeats once all processes exist."""
    process, members = jax.process_index(), range(jax.process_count())
    heartbeat = Heartbeat(KeyValues("hybridlm/joined"), process, peer_timeout(), members)
    report_at_abort(heartbeat.reason, EXIT_PEER_LOST)
    _started.append(heartbeat)


def take_heartbeat(store: KeyValues, process: int) -> Heartbeat:
    """Return a process group's heartbeat; the first group takes `start_heartbeat`'s."""
    if _started:
        return _started.pop()
    heartbeat = Heartbeat(store, process, peer_timeout())
    report_at_abort(heartbeat.reason, EXIT_PEER_LOST)
    return heartbeat


MIN_JAX_HEARTBEAT = 10
"""Seconds of silence that JAX's coordination service accepts."""


def join(timeout: float, devices: int | None = None) -> None:
    """Join a run as one process of a launcher, and watch the others.

    Args:
        timeout: seconds without an answer until a process is lost.
        devices: virtual CPU devices; None for JAX's default.

    Raises:
        ValueError: unknown number of processes, or timeout out of range.
    """
    set_peer_timeout(timeout)
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    numbers: dict[str, Any] = {}
    if COUNT in os.environ and NUMBER in os.environ:
        numbers = {"num_processes": int(os.environ[COUNT]), "process_id": int(os.environ[NUMBER])}
    try:
        # The heartbeat is quicker than JAX and reports more.
        jax.distributed.initialize(
            **numbers,
            initialization_timeout=2 * MAX_TIMEOUT,
            heartbeat_timeout_seconds=max(MIN_JAX_HEARTBEAT, int(timeout)),
            # Processes leave together; JAX aborts all if one is later, perhaps still loading programs.
            shutdown_timeout_seconds=max(1, int(timeout)),
        )
    except ValueError as error:
        raise ValueError(
            f"launch: no launcher has started this process ({error}); say how many processes to start here (-n 4), or "
            f"run it under SLURM or Open MPI, or set {ADDRESS}, {COUNT} and {NUMBER}"
        ) from error
    jax.devices()  # a barrier
    if jax.process_count() > 1:
        start_heartbeat()
