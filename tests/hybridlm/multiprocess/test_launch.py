"""Processes that are started together end together, and who failed first is named."""

import os
import signal
import sys
import threading
import time

import pytest

from hybridlm.multiprocess.environment import ADDRESS, COUNT, NUMBER
from hybridlm.multiprocess.launch import LaunchError, launch


def command(*lines: str) -> list[str]:
    return [
        sys.executable,
        "-S",
        "-c",
        "\n".join(["import os, sys, time", f"me = int(os.environ['{NUMBER}'])", *lines]),
    ]


def test_output_of_other_processes_has_their_number(capfd: pytest.CaptureFixture) -> None:
    launch(command(f"print('here is', me, 'of', os.environ['{COUNT}'], '{ADDRESS}' in os.environ)"), 3, 10.0)
    output = capfd.readouterr()
    assert output.out == "here is 0 of 3 True\n"
    assert sorted(output.err.splitlines()) == [f"[{i}] here is {i} of 3 True" for i in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "expected", "status"), [
    ("sys.exit(3)", r"process 1 \(pid \d+\) ended with status 3, and with it all others", 3),
    ("os.kill(os.getpid(), 9)", r"process 1 \(pid \d+\) was ended by SIGKILL, and with it all others", 137),
])  # fmt: skip
def test_with_the_first_that_fails_all_end(how: str, expected: str, status: int) -> None:
    begun = time.monotonic()
    with pytest.raises(LaunchError, match=rf"{expected}; 0, 2 did not answer and were killed") as error:
        launch(command(f"{how} if me == 1 else time.sleep(60)"), 3, 1.0)
    assert error.value.status == status and time.monotonic() - begun < 10


@pytest.mark.parametrize(("code", "others_ended"), [("sys.exit(3 * (me == 0))", True), ("sys.exit(3)", False)])
def test_a_status_of_the_first_alone_is_told_apart(code: str, others_ended: bool) -> None:
    """A complete run with error rows is no failure of a process."""
    with pytest.raises(LaunchError, match="ended with status 3") as error:
        launch(command(code), 2, 10.0)
    assert (error.value.status, error.value.others_ended) == (3, others_ended)


def test_who_ends_because_of_another_is_not_the_one_that_failed() -> None:
    with pytest.raises(LaunchError, match=r"process 2 \(pid \d+\) ended with status 5"):
        launch(command("time.sleep(0.5 * (me == 2))", "sys.exit(5 if me == 2 else 70)"), 3, 10.0)


def test_processes_that_outlive_the_first_are_killed() -> None:
    with pytest.raises(LaunchError, match=r"process 0 has ended, and 1 did not within 0\.5 s: killed"):
        launch(command("time.sleep(60 * me)"), 2, 1.0)


def test_a_signal_is_handed_on() -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(LaunchError, match="ended by SIGTERM") as error:
        launch(command("time.sleep(60)"), 2, 5.0)
    assert error.value.status == 128 + signal.SIGTERM
