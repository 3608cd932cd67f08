"""Several processes run one model: the numbers of one process, and behaviour after faults."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from comparison import TOLERANCES
from random_checkpoint import write_random_checkpoint
from run_together import PROMPTS, SETTINGS, everything

import hybridlm

COUNT, TIMEOUT = 4, 20.0
ROOT = Path(__file__).parents[3]
START = ROOT / "tests/reference/processes/start_together.py"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("together")
    return write_random_checkpoint("dense_base", path, num_hidden_layers=2, full_attention_interval=2)


def together(directory: Path, fault: str, faulty: int = 2, how: str = "launch") -> tuple[str, float, int]:
    """Return outputs of four processes, seconds from a fault to their end, exit status."""
    (directory / "found.json").unlink(missing_ok=True)
    run = subprocess.run(
        [sys.executable, START, directory, fault, str(COUNT), str(TIMEOUT), str(faulty), how],
        capture_output=True, text=True, timeout=400, cwd=ROOT, check=False,
    )  # fmt: skip
    results = [float(item) for item in re.findall(r"(?:befallen|ended) at ([\d.]+)", run.stderr)]
    return run.stderr, results[-1] - results[0] if len(results) > 1 else 0.0, run.returncode


@pytest.mark.long
def test_four_processes_and_one_compute_the_same(directory: Path) -> None:
    message, _, status = together(directory, "none")
    assert status == 0, message
    record: dict[str, Any] = json.loads((directory / "found.json").read_text())
    lm = hybridlm.load(directory, certify="off", compilation_cache=False, **SETTINGS)
    expected = everything(lm)
    for name in ("tokens", "sampled", "drafted", "continued"):
        assert record[name] == expected[name]
    for name in ("logprobs", "scores", "chosen", "vectors"):
        for a, b in zip(record[name], expected[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCES["qwen3_5"])


@pytest.mark.long
@pytest.mark.parametrize("how", ["idle", "saved"])
def test_processes_whose_lanes_are_idle_take_part(directory: Path, how: str) -> None:
    """One prompt; "saved" loads a model that all processes wrote under another mesh."""
    message, _, status = together(directory, how)
    assert status == 0, message
    lm = hybridlm.load(directory, certify="off", compilation_cache=False, **SETTINGS)
    expected = lm.generate(PROMPTS[:1], max_tokens=8, ignore_eos=True)
    assert json.loads((directory / "found.json").read_text())["tokens"] == [each.token_ids for each in expected]


@pytest.mark.long
@pytest.mark.parametrize(("fault", "expected"), [
    ("tokens", "process 2: batch.tokens: expected"),
    ("lengths", "process 2: batch.lengths: expected"),
    ("positions", "process 2: batch.positions: expected"),
    ("slots", "process 2: batch.slots: expected"),
    ("slot", "process 2: slot that is written: expected"),
])  # fmt: skip
def test_a_process_with_other_operands_writes_nothing_anywhere(directory: Path, fault: str, expected: str) -> None:
    """The fault follows the checksum: the step finds it, and every process reports the place."""
    message, seconds, status = together(directory, fault)
    assert status == 70 and seconds < TIMEOUT, message
    for process in range(COUNT):
        line = next(line for line in message.splitlines() if f"error: process {process}:" in line)
        assert re.search(r"step \d+ \(", line) and expected in line and "no row was written" in line
        assert re.search(rf"process {process}: kept True, [1-9]\d* changed", message), message


@pytest.mark.long
@pytest.mark.parametrize(("fault", "expected"), [
    ("flip", r"message 14, part 0: checksum: expected \w+, got \w+"),
    ("epoch", "message 14: expected number 14, got 13"),
    ("rows", r"process 2: step: expected generate 4x5 of 8.* as process 0 has, got generate 4x5 of 12"),
    ("program", r"process 2: program: expected \w+ as process 0 has, got \w+"),
    ("collectives", r"process 2: order of collectives: expected \w+ as process 0 has, got \w+"),
    ("lanes", "process 2: lanes: expected 8 as process 0 has, got 12"),
    ("weights", r"process 2: checkpoint: expected '?\w+'? as process 0 has, got '?\w+"),
    ("kill", r"process 2 \(pid \d+ on .*\) has not answered|process 2 .* was ended by SIGKILL"),
    ("stop", r"process 2 \(pid \d+ on .*\) has not answered|process 2 did not answer and was killed"),
    ("sleep", r"process 2 \(pid \d+ on .*\) answers, but has stood at message 14"),
])  # fmt: skip
def test_a_process_at_fault_ends_all_in_time_and_is_named(directory: Path, fault: str, expected: str) -> None:
    message, seconds, status = together(directory, fault)
    assert status != 0 and seconds < TIMEOUT, message
    assert not (directory / "found.json").exists()
    blamed = [line for line in message.splitlines() if "error: " in line]
    assert len(blamed) >= 2 and all(re.search(expected, line) for line in blamed if "with it all" not in line), message


@pytest.mark.long
@pytest.mark.parametrize(("fault", "faulty"), [("kill", 0), ("kill", 2), ("early", 0), ("early", 2)])
def test_a_process_that_dies_is_named_by_each_of_the_others(directory: Path, fault: str, faulty: int) -> None:
    """Each process reports by itself; process 0 has the coordinator, "early" precedes loading."""
    message, seconds, _ = together(directory, fault, faulty, "alone")
    assert seconds < TIMEOUT and not (directory / "found.json").exists(), message
    statuses = json.loads(re.findall(r"statuses (\[.*\])", message)[0])
    assert statuses[faulty] == -9 and statuses.count(70) == COUNT - 1, message
    for other in set(range(COUNT)) - {faulty}:
        ends = rf"error: process {faulty} .*(has ended|has not answered).*process {other} \(pid \d+ on .*\) ends"
        assert re.search(rf"{ends}|error: process {other}: .*process {faulty} ", message), message


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--", "inspect", "x"], "expected one of generate, score, decide, classify, embed after --, got 'inspect'"),
    (["-n", "0", "--", "score"], "expected at least one process, got 0"),
    (["--timeout", "61", "--", "score"], "timeout: expected 1 to 60 seconds, got 61"),
])  # fmt: skip
def test_other_commands_are_refused(arguments: list[str], expected: str) -> None:
    assert expected in run_command("launch", *arguments, code=1).output


@pytest.mark.long
def test_scoring_continues_after_a_killed_process(directory: Path, tmp_path: Path) -> None:
    """The command, killed midway and run again, writes every row once."""
    rng = np.random.default_rng(0)
    lines = [{"id": i, "token_ids": rng.integers(0, 64, 1 + i % 30).tolist()} for i in range(120)]
    settings, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    settings.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "hybridlm", "launch", "-n", "4", "--devices", "1"]
    command += ["--timeout", str(TIMEOUT), "--", "score"]
    command += [
        "--model", str(directory), str(settings), str(output), "--window", "8", "--context", "200", "--chunk", "5",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        parts = Path(f"{output}.parts")
        while first.poll() is None and len(list(parts.glob("part-*"))) < 3:
            time.sleep(0.02)
        assert first.poll() is None, first.communicate()[1]
        workers = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True)
        subprocess.run(["kill", "-9", workers.stdout.split()[-1]], check=True)
        message = first.communicate(timeout=2 * TIMEOUT)[1]
    assert first.returncode == 128 + 9 and "was ended by SIGKILL" in message, message
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(r"; [1-9]\d* rows were done by an earlier run", run.stderr), run.stderr
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["id"] for row in results] == list(range(120))


@pytest.mark.long
def test_processes_are_found_by_the_variables_of_slurm(directory: Path, tmp_path: Path) -> None:
    """The variables that srun sets for two tasks on one node, without our launcher."""
    with socket.socket() as listener:
        job = next(
            number for number in range(os.getpid(), os.getpid() + 4096) if listener.connect_ex(("", port_of(number)))
        )
    settings, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    settings.write_text("".join(json.dumps({"id": i, "token_ids": prompt}) + "\n" for i, prompt in enumerate(PROMPTS)))
    command = [sys.executable, "-m", "hybridlm", "launch", "--devices", "1", "--timeout", str(TIMEOUT), "--", "score"]
    command += ["--model", str(directory), str(settings), str(output), "--context", "200", "--chunk", "5"]
    slurm = {"JOB_ID": job, "STEP_NODELIST": "localhost", "NTASKS": 2, "STEP_NUM_NODES": 1}
    running = []
    for number in range(2):
        variables = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        variables |= {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        running.append(subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True))
    messages = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], messages
    actual = {row["id"]: row for row in map(json.loads, output.read_text().splitlines())}
    listener = hybridlm.load(directory, certify="off", compilation_cache=False, **SETTINGS)
    for i, expected in enumerate(listener.score(PROMPTS)):
        logprobs = actual[i]["logprobs"][1:]
        np.testing.assert_allclose(logprobs, expected.logprobs[1:], rtol=0, atol=TOLERANCES["qwen3_5"])


def port_of(job: int) -> int:
    """Return the port where JAX lets SLURM processes meet."""
    return 61440 + job % 4096
