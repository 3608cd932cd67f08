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

from hybridlm.multiprocess.environment import LOST, patience
from hybridlm.multiprocess.key_values import KeyValues
from hybridlm.multiprocess.last_words import gone, say_at_abort

BEATS = 10.0
"""A process says that it is there so many times within the timeout, or once a second if that is more often."""


class Sign(NamedTuple):
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


class Watch:
    """Watches over the other processes.

    Args:
        store: where signs are left.
        process: which this is.
        timeout: seconds after which one that is silent, or lags behind, has ended all others. They notice after half.
        members: processes that are known to be there as the watch begins; of others nothing is expected before their
            first sign.
        end: ends this process, for tests; takes the exit status.

    Attributes:
        epoch, busy: of this process; see `Sign`.
        known: why another process has ended, as soon as that is known.
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
        self.known: str | None = None
        self._signs: dict[int, Sign] = {}
        self._since = dict.fromkeys(members, time.monotonic())
        self._abreast: dict[int, float] = {}
        self._stopped = threading.Event()
        self._heard = time.monotonic()
        for run in (self._say, self._judge):
            threading.Thread(target=run, name=f"hybridlm-watch{run.__name__}", daemon=True).start()

    def stop(self) -> None:
        """The run is over: whoever ends now has done what there was to do."""
        self._stopped.set()

    def reason(self) -> str | None:
        """Why JAX ends this process: what is known, or process 0 has gone, or another is silent; None for none."""
        found = self.known
        if found is None and not self._stopped.is_set():
            if self._process != 0 and gone(self._store.address):
                found = f"{self._named(0)} has ended, or its host is gone"
            elif (silent := self._silent(self._patience / 2)) is not None:
                found = silent[1]
        return None if found is None else f"{found}; {self._name} ends"

    def failed(self, message: str) -> None:
        """Tell the others why this process cannot go on."""
        self._blame(self._process, f"process {self._process} has ended: {message}")

    def find_out(self) -> None:
        """Let it be known why a step has failed that all processes run: one said why it ended, or has fallen silent.

        Waits a while for one to be silent for long enough.
        """
        end = time.monotonic() + self._patience / 2
        while self.known is None and time.monotonic() < end:
            silent = self._silent(3 * self._interval)
            if silent is not None:
                self._blame(*silent)
                self.known = silent[1]
            time.sleep(self._interval / 4)

    def _blame(self, other: int, message: str) -> None:
        """Say why a process cannot go on, which others would take for one that has fallen silent for no reason."""
        with suppress(jax.errors.JaxRuntimeError):
            self._store.set(f"failed/{other}", message.encode())

    def _say(self) -> None:
        """Leave a sign, and take those of the others."""
        beat = 0
        while not self._stopped.is_set():
            beat += 1
            try:
                sign = Sign(beat, self._name, self.epoch, self.busy)
                self._store.set(f"alive/{self._process}", json.dumps(sign).encode())
                self._take({int(number): Sign(*json.loads(one)) for number, one in self._store.under("alive").items()})
                failed = {int(number): text.decode() for number, text in self._store.under("failed").items()}
                self._heard = time.monotonic()
                self.known = self.known or next((why for one, why in failed.items() if one != self._process), None)
            except jax.errors.JaxRuntimeError:
                pass  # no answer: `_judge` counts for how long
            self._stopped.wait(self._interval)

    def _take(self, signs: dict[int, Sign]) -> None:
        now = time.monotonic()
        told = max((sign.epoch for sign in signs.values()), default=0)
        for other, sign in signs.items():
            if sign != self._signs.get(other):
                self._since[other] = now
            before = self._signs.get(other)
            if before is None or sign.busy or sign.epoch == told or sign.epoch != before.epoch:
                self._abreast[other] = now
        self._signs = signs

    def _judge(self) -> None:
        since = None
        while not self._stopped.wait(self._interval):
            found = self._silent(self._patience) or self._lagging()
            since = since or (None if self.known is None else time.monotonic())
            if found is not None:
                self._leave(found[1])
            elif self.known is not None and since is not None and time.monotonic() - since > self._patience / 4:
                self._leave(self.known)  # what this process waits for does not fail by itself

    def _leave(self, reason: str) -> None:
        if not self._stopped.is_set():
            print(f"error: {reason}; {self._name} ends", file=sys.stderr, flush=True)
            self.known = self.known or reason  # and not why JAX may end this process meanwhile
            self._stopped.set()
            if self._process == 0:
                time.sleep(self._patience / 4)  # the others learn here why they end
            self._end(LOST)

    def _silent(self, seconds: float) -> tuple[int, str] | None:
        """A process that has said nothing for so long, and what is to be said of it."""
        now = time.monotonic()
        quiet = now - self._heard
        if quiet > seconds:  # the store is in process 0
            return 0, self._quiet(0, quiet)
        for other, since in list(self._since.items()):  # which another thread adds to
            quiet = now - since
            if other != self._process and quiet > seconds:
                return other, self._quiet(other, quiet)
        return None

    def _quiet(self, other: int, seconds: float) -> str:
        named = self._named(other)
        return f"{named} has not answered for {seconds:.0f} s: it was killed or stopped, or its host is gone"

    def _named(self, other: int) -> str:
        sign = self._signs.get(other)
        return f"process {other}" if sign is None else sign.name

    def _lagging(self) -> tuple[int, str] | None:
        now = time.monotonic()
        for other, sign in self._signs.items():
            behind = now - self._abreast[other]
            if behind > self._patience and now - self._since[other] < self._patience / 2:
                return other, (
                    f"{sign.name} answers, but has stood at operation {sign.epoch} for {behind:.0f} s, while others "
                    "are past it"
                )
        return None


_begun: list[Watch] = []


def begin_watch() -> None:
    """Watch over all processes from here, where every one of them is."""
    process, members = jax.process_index(), range(jax.process_count())
    watch = Watch(KeyValues("hybridlm/joined"), process, patience(), members)
    say_at_abort(watch.reason, LOST)
    _begun.append(watch)


def take_watch(store: KeyValues, process: int) -> Watch:
    """The watch over the processes that run a model: the one that was begun, for the first of them."""
    if _begun:
        return _begun.pop()
    watch = Watch(store, process, patience())
    say_at_abort(watch.reason, LOST)
    return watch
