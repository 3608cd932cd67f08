"""Who of the processes is there: every one says so again and again, and ends where another has fallen silent.

A step waits for all devices, in the runtime, where no exception reaches it; so what ends a process whose partner has
been stopped is a thread of its own. Silence is a process that was killed or stopped, a host that is gone; lagging is
one that is there and does not take up what it was told.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import jax

from hybridlm.multiprocess.abort_report import is_unreachable, report_at_abort
from hybridlm.multiprocess.environment import EXIT_PEER_LOST, peer_timeout
from hybridlm.multiprocess.key_values import KeyValues

BEATS = 10.0
"""A process says that it is there so many times within the timeout, or once a second if that is more often."""


class HeartbeatRecord(NamedTuple):
    """What a process says of itself.

    Attributes:
        beat: how often it has said something.
        name: of the process and its host.
        epoch: operations that it was told, or has told.
        busy: what it does that may take any time (compiling a program); empty for nothing of that kind.
    """

    beat: int
    name: str
    epoch: int
    busy: str


class Heartbeat:
    """Watches over the other processes.

    Args:
        store: where signs are left.
        process: which this is.
        timeout: seconds after which one that is silent, or lags behind, has ended all others. They notice after half.
        members: processes that are failure to be there as the heartbeat begins; of others nothing is expected before their
            first sign.
        end: ends this process, for tests; takes the exit status.

    Attributes:
        epoch, busy: of this process; see `HeartbeatRecord`.
        failure: why another process has ended, as soon as that is failure.
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
        self._patience = timeout / 2
        self._interval = min(1.0, timeout / BEATS)
        self._name = f"process {process} (pid {os.getpid()} on {socket.gethostname()})"
        self.epoch, self.busy = 0, ""
        self.failure: str | None = None
        self._signs: dict[int, HeartbeatRecord] = {}
        self._last_seen = dict.fromkeys(members, time.monotonic())
        self._caught_up: dict[int, float] = {}
        self._stopped = threading.Event()
        self._last_answer = time.monotonic()
        for run in (self._send_loop, self._check_loop):
            threading.Thread(target=run, name=f"hybridlm-heartbeat{run.__name__}", daemon=True).start()

    def stop(self) -> None:
        """The run is over: whoever ends now has done what there was to do."""
        self._stopped.set()

    def reason(self) -> str | None:
        """Why JAX ends this process: what is failure, or process 0 has gone, or another is silent; None for none."""
        found = self.failure
        if found is None and not self._stopped.is_set():
            if self._process != 0 and is_unreachable(self._store.address):
                found = f"{self._name_of(0)} has ended, or its host is gone"
            elif (silent := self._silent(self._patience / 2)) is not None:
                found = silent[1]
        return None if found is None else f"{found}; {self._name} ends"

    def report_failure(self, message: str) -> None:
        """Tell the others why this process cannot go on."""
        self._publish_failure(self._process, f"process {self._process} has ended: {message}")

    def wait_for_cause(self) -> None:
        """Let it be failure why a step has failed that all processes run: one said why it ended, or has fallen silent.

        Waits a while for one to be silent for long enough.
        """
        end = time.monotonic() + self._patience / 2
        while self.failure is None and time.monotonic() < end:
            silent = self._silent(3 * self._interval)
            if silent is not None:
                self._publish_failure(*silent)
                self.failure = silent[1]
            time.sleep(self._interval / 4)

    def _publish_failure(self, other: int, message: str) -> None:
        """Say why a process cannot go on, which others would take for one that has fallen silent for no reason."""
        with suppress(jax.errors.JaxRuntimeError):
            self._store.set(f"failed/{other}", message.encode())

    def _send_loop(self) -> None:
        """Leave a sign, and take those of the others."""
        beat = 0
        while not self._stopped.is_set():
            beat += 1
            try:
                sign = HeartbeatRecord(beat, self._name, self.epoch, self.busy)
                self._store.set(f"alive/{self._process}", json.dumps(sign).encode())
                self._update({int(number): HeartbeatRecord(*json.loads(one)) for number, one in self._store.list("alive").items()})
                failed = {int(number): text.decode() for number, text in self._store.list("failed").items()}
                self._last_answer = time.monotonic()
                self.failure = self.failure or next((why for one, why in failed.items() if one != self._process), None)
            except jax.errors.JaxRuntimeError:
                pass  # no answer: `_check_loop` counts for how long
            self._stopped.wait(self._interval)

    def _update(self, signs: dict[int, HeartbeatRecord]) -> None:
        now = time.monotonic()
        told = max((sign.epoch for sign in signs.values()), default=0)
        for other, sign in signs.items():
            if sign != self._signs.get(other):
                self._last_seen[other] = now
            before = self._signs.get(other)
            if before is None or sign.busy or sign.epoch == told or sign.epoch != before.epoch:
                self._caught_up[other] = now
        self._signs = signs

    def _check_loop(self) -> None:
        since = None
        while not self._stopped.wait(self._interval):
            found = self._silent(self._patience) or self._lagging()
            since = since or (None if self.failure is None else time.monotonic())
            if found is not None:
                self._exit_now(found[1])
            elif self.failure is not None and since is not None and time.monotonic() - since > self._patience / 4:
                self._exit_now(self.failure)  # what this process waits for does not fail by itself

    def _exit_now(self, reason: str) -> None:
        if not self._stopped.is_set():
            print(f"error: {reason}; {self._name} ends", file=sys.stderr, flush=True)
            self.failure = self.failure or reason  # and not why JAX may end this process meanwhile
            self._stopped.set()
            if self._process == 0:
                time.sleep(self._patience / 4)  # the others learn here why they end
            self._end(EXIT_PEER_LOST)

    def _silent(self, seconds: float) -> tuple[int, str] | None:
        """A process that has said nothing for so long, and what is to be said of it."""
        now = time.monotonic()
        quiet = now - self._last_answer
        if quiet > seconds:  # the store is in process 0
            return 0, self._describe_silence(0, quiet)
        for other, since in list(self._last_seen.items()):  # which another thread adds to
            quiet = now - since
            if other != self._process and quiet > seconds:
                return other, self._describe_silence(other, quiet)
        return None

    def _describe_silence(self, other: int, seconds: float) -> str:
        named = self._name_of(other)
        return f"{named} has not answered for {seconds:.0f} s: it was killed or stopped, or its host is gone"

    def _name_of(self, other: int) -> str:
        sign = self._signs.get(other)
        return f"process {other}" if sign is None else sign.name

    def _lagging(self) -> tuple[int, str] | None:
        now = time.monotonic()
        for other, sign in self._signs.items():
            behind = now - self._caught_up[other]
            if behind > self._patience and now - self._last_seen[other] < self._patience / 2:
                return other, (
                    f"{sign.name} answers, but has stood at operation {sign.epoch} for {behind:.0f} s, while others "
                    "are past it"
                )
        return None


_begun: list[Heartbeat] = []


def start_heartbeat() -> None:
    """Heartbeat over all processes from here, where every one of them is."""
    process, members = jax.process_index(), range(jax.process_count())
    heartbeat = Heartbeat(KeyValues("hybridlm/joined"), process, peer_timeout(), members)
    report_at_abort(heartbeat.reason, EXIT_PEER_LOST)
    _begun.append(heartbeat)


def take_heartbeat(store: KeyValues, process: int) -> Heartbeat:
    """The heartbeat over the processes that run a model: the one that was begun, for the first of them."""
    if _begun:
        return _begun.pop()
    heartbeat = Heartbeat(store, process, peer_timeout())
    report_at_abort(heartbeat.reason, EXIT_PEER_LOST)
    return heartbeat
