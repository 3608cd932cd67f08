"""Check hybridlm on the GPU of this machine, in at most 370 seconds.

    python scripts/check_device.py [--out FOLDER] [--seconds 370] [--parts kernels layers]
    python scripts/check_device.py --rehearse     # everything small on a CPU, kernels by Pallas' interpreter

Writes one page and a few files. Needs a checkout and the packages that pyproject.toml requires; no extra, no network,
no installation. Each part (docs/accelerators.md) is a process with a deadline. A crash, a hang or a kill loses
only the running check. The exit status is 0 if no check failed, and in each part one passed.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT, *(ROOT / "tests" / "reference").glob("*/"))
GRACE = 3.0
"""Seconds between the deadline of a process and its kill."""
PAUSE = 1.0
"""Seconds between two reads of records and evidence."""


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        seconds: time until the deadline, of 370 for all parts.
        processes: share the checks.
        flags: added to XLA_FLAGS.
        prepares: a process on the CPU writes the files for this part, from the beginning of the check.
        environment: additional variables.
    """

    seconds: float
    processes: int = 1
    flags: str = ""
    prepares: bool = False
    environment: dict[str, str] = field(default_factory=dict)


PARTS = {
    "preflight": Part(20),
    "kernels": Part(90),
    "layers": Part(65),
    "engine": Part(60, prepares=True),
    "families": Part(60, processes=8, environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "layers without command buffers": Part(35, flags="--xla_gpu_enable_command_buffer="),
    "torch": Part(40),
}
"""By value: an early end loses comparisons, not whether models run."""
TOTAL = sum(part.seconds for part in PARTS.values())
REHEARSED_PROCESSES = 2


def run_part(name: str, options: argparse.Namespace) -> None:
    """Run one part, or a share of its checks, in this process."""
    from device_records import Records

    warnings.simplefilter("ignore")
    records = Records(options.out, options.work / "evidence", name, options.seconds)
    module, function, *arguments = {
        "preflight": ("device_preflight", "preflight"),
        "kernels": ("device_kernel_check", "check_kernels"),
        "families": ("device_families", "check_families", (options.share, options.processes)),
        "torch": ("device_torch", "check_torch"),
        "engine": ("device_engine", "check_engine", options.work),
    }.get(name, ("device_layers", "check_layers", bool(PARTS[name].flags)))
    getattr(importlib.import_module(module), function)(records, options.rehearse, *arguments)
    sys.stderr.flush()
    os._exit(0)  # does not wait for threads that still compile


class Check:
    """Main process: starts the parts one after the other, and writes page and archives."""

    def __init__(self, options: argparse.Namespace, work: Path):
        self.options, self.work = options, work
        self.states: dict[str, str] = {}
        self.logs: dict[str, Path] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._sizes: tuple[int, int] = (-1, -1)

    def start(self, name: str, command: list[str], environment: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        """Start a process in a new group, with a log."""
        self.logs[log] = self.work / f"{log}.log"
        with self.logs[log].open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", *command], env=environment, stdout=file, stderr=file, start_new_session=True
            )
        self.processes.append(process)
        return process

    def run(self) -> None:
        options, tiny = self.options, ["tiny"] if self.options.rehearse else []
        environment = os.environ | {
            "XDG_CACHE_HOME": str(self.work / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        if any(PARTS[name].prepares for name in options.parts):
            script = ROOT / "tests" / "reference" / "device" / "device_engine.py"
            self.start(
                "prepare", [str(script), str(self.work), *tiny], {**environment, "JAX_PLATFORMS": "cpu"}, "prepare"
            )
        for name in options.parts:
            part, seconds = PARTS[name], PARTS[name].seconds * options.seconds / TOTAL
            flags = f"{environment.get('XLA_FLAGS', '')} {part.flags}".strip()
            variables = {**environment, **part.environment, **({"XLA_FLAGS": flags} if flags else {})}
            count = min(part.processes, REHEARSED_PROCESSES) if options.rehearse else part.processes
            running = [
                self.start(
                    name,
                    self._command(name, seconds, share, count),
                    variables,
                    f"{name} {share}" if count > 1 else name,
                )
                for share in range(count)
            ]
            self.states[name] = self._wait(running, time.monotonic() + seconds + GRACE)
            self.write()
            if name == "preflight" and self._without_device():
                return

    def write(self) -> None:
        """Write page, log and archives."""
        from device_archives import write_archives, write_log, write_page
        from device_page import page
        from device_records import read_records

        write_page(self.options.out, page(read_records(self.options.out), self.options.parts, self.states))
        write_log(self.options.out, self.logs)
        write_archives(self.options.out, self.work / "evidence")

    def stop(self) -> None:
        """End all started processes."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _command(self, name: str, seconds: float, share: int, processes: int) -> list[str]:
        command = [__file__, "--part", name, "--out", str(self.options.out), "--work", str(self.work)]
        command += ["--seconds", str(seconds), "--share", str(share), "--processes", str(processes)]
        return [*command, *(["--rehearse"] if self.options.rehearse else [])]

    def _wait(self, running: list[subprocess.Popen[bytes]], deadline: float) -> str:
        """Wait for a part's processes, kill late ones, and return their state."""
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(PAUSE / 4)
            if self._changed():
                self.write()
        late = [process for process in running if process.poll() is None]
        for process in late:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ends = sorted({process.returncode for process in running if process not in late} - {0})
        states = [f"{len(late)} of {len(running)} processes killed at the deadline"] * bool(late)
        states += [f"a process ended with {code}" for code in ends]
        return "; ".join(states) or "finished"

    def _without_device(self) -> bool:
        """Return whether jax has found no GPU or TPU."""
        from device_records import FAILED, read_records

        devices = [record for record in read_records(self.options.out) if record.get("name") == "device"]
        return any(record["verdict"] == FAILED for record in devices)

    def _changed(self) -> bool:
        """Return whether the page lacks a record or evidence."""
        file = self.options.out / "results.jsonl"
        sizes = file.stat().st_size if file.exists() else 0, sum(1 for _ in (self.work / "evidence").rglob("*.gz"))
        changed, self._sizes = sizes != self._sizes, sizes
        return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "device-check")), help="folder of the results"
    )
    parser.add_argument("--seconds", type=float, default=TOTAL, help="of all parts, shared as in PARTS")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rehearse", action="store_true", help="everything small on a CPU")
    for name in ("part", "work"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in ("share", "processes"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = map(str, FOLDERS)
    if options.part:
        options.work = Path(options.work)
        run_part(options.part, options)
    options.out = options.out.resolve()
    from device_archives import clear_results
    from device_page import verdict
    from device_records import read_records

    clear_results(options.out)

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="hybridlm-device-") as folder:
        check = Check(options, Path(folder))
        try:
            check.run()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
        finally:
            check.stop()
            check.write()
    text = (options.out / "page.md").read_text(encoding="utf-8")
    print(text)
    rows = [record for record in read_records(options.out) if "name" in record]
    passed = {row["part"] for row in rows if row["verdict"] == "passed"}
    needed = {name for name in options.parts if name != "torch" or not options.rehearse}
    finished = all(check.states.get(name) == "finished" for name in options.parts)
    return 0 if finished and needed <= passed and verdict(rows) != "FAILED" else 1


if __name__ == "__main__":
    sys.exit(main())
