"""Start processes of one command on this machine; the first failure ends all."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from hybridlm.multiprocess.environment import ADDRESS, COUNT, EXIT_PEER_LOST, NUMBER

_POLL_SECONDS = 0.1


class LaunchError(RuntimeError):
    """A process failed; all others were ended.

    Attributes:
        status: as a shell counts it.
        others_ended: process 0 failed, and all others ended well.
    """

    def __init__(self, message: str, status: int, others_ended: bool = False):
        super().__init__(message)
        self.status, self.others_ended = status, others_ended

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.status, self.others_ended)


def launch(command: Sequence[str], count: int, timeout: float) -> None:
    """Run a command as `count` processes on this machine.

    Other processes write to standard error, with a prefix "[1] ". SIGINT and SIGTERM are forwarded.

    Args:
        command: of each process; environment variables have its number.
        timeout: seconds for all others to end after a failure or process 0's end.

    Raises:
        LaunchError: names the failed process.
    """
    address = f"127.0.0.1:{free_port()}"
    processes: list[subprocess.Popen[bytes]] = []
    pumps: list[threading.Thread] = []
    received: list[int] = []

    def forward_signal(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    handlers = {number: signal.signal(number, forward_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for i in range(count):
            variables = {**os.environ, ADDRESS: address, COUNT: str(count), NUMBER: str(i)}
            pipe = None if i == 0 else subprocess.PIPE
            stdin = None if i == 0 else subprocess.DEVNULL
            # In its own process group, Ctrl-C in a terminal reaches it once, through this process.
            process = subprocess.Popen(
                command, env=variables, stdin=stdin, stdout=pipe, stderr=subprocess.STDOUT if pipe else None,
                process_group=0,
            )  # fmt: skip
            processes.append(process)
            if process.stdout is not None:
                pumps.append(threading.Thread(target=_prefixed, args=(i, process.stdout), daemon=True))
                pumps[-1].start()
        _wait(processes, timeout, received)
    finally:
        for process in processes:
            process.kill()  # also ends stopped processes
            process.wait()
        for pump in pumps:
            pump.join(timeout=1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(processes: list[subprocess.Popen[bytes]], timeout: float, received: list[int]) -> None:
    """Wait for all processes, or until others report a failure (half of the timeout)."""
    end, failed = None, None
    while any(process.poll() is None for process in processes):
        if end is None and processes[0].poll() is not None:
            end = time.monotonic() + timeout / 2
        for i, process in enumerate(processes):
            # With EXIT_PEER_LOST another process is the cause.
            if process.poll() and (failed is None or failed[1] == EXIT_PEER_LOST != process.returncode):
                if failed is None:
                    end = time.monotonic() + timeout * (0.35 if process.returncode == EXIT_PEER_LOST else 0.75)
                failed = i, process.returncode
        if end is not None and time.monotonic() > end:
            break
        time.sleep(_POLL_SECONDS)
    failures = [(i, status) for i, process in enumerate(processes) if (status := process.poll())]
    failures = [failure for failure in failures if failure[1] != EXIT_PEER_LOST] or failures
    remaining = [str(i) for i, process in enumerate(processes) if process.poll() is None]
    if received:
        raise LaunchError(f"ended by {signal.Signals(received[0]).name}", 128 + received[0])
    if remaining and failures and all(status == EXIT_PEER_LOST for _, status in failures):
        raise LaunchError(
            f"process {', '.join(remaining)} did not answer and was killed; the others ended because of it",
            EXIT_PEER_LOST,
        )
    if failures:
        i, status = failed if failed is not None and failed[1] != EXIT_PEER_LOST else failures[0]
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        others_text = f"; {', '.join(remaining)} did not answer and were killed" if remaining else ""
        raise LaunchError(
            f"process {i} (pid {processes[i].pid}) {how}, and with it all others{others_text}",
            128 - status if status < 0 else status,  # 128 and the signal, as a shell counts
            others_ended=not remaining and [number for number, _ in failures] == [0],
        )
    if remaining:
        raise LaunchError(
            f"process 0 has ended, and {', '.join(remaining)} did not within {timeout / 2:g} s: killed", 1
        )


def _prefixed(number: int, source: IO[bytes]) -> None:
    with source:
        for line in source:
            sys.stderr.write(f"[{number}] {line.decode(errors='replace')}")
            sys.stderr.flush()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
