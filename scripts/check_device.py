"""Check hybridlm on the GPU or TPU of this machine: two small and one large random model, one JSON and one page.

    python scripts/check_device.py                        # with the packages of this Python
    python scripts/check_device.py --wheels FOLDER        # with those of a folder of wheels, without a network

At most eight minutes on one device. Numbers are compared with those that a process computes on the CPU meanwhile, lanes
are disturbed while others are watched bit by bit, every step has its certificate, and decoding and prefill are timed
beside their floor. device-check/report.json and report.md hold what was found, also after a crash: they are written
after every check. docs/accelerators.md says where to send them. The exit status is 0 if every check passed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import venv
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_SECONDS = 480.0
NOT_RUN, PASSED, FAILED = "not run", "passed", "FAILED"


class Report:
    """Findings so far; every change is written to both files.

    Args:
        folder: for report.json and report.md.
        planned: model and check of everything that is to come.
    """

    def __init__(self, folder: Path, planned: Sequence[tuple[str, str]]):
        self._folder, self._lock = folder, threading.RLock()
        self.checks = {name: {"verdict": NOT_RUN, "seconds": 0.0, "figures": {}, "why": None} for name in planned}
        self.facts: dict[str, Any] = {}
        self.certificates: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def verdict(self) -> str:
        """The worst of all checks."""
        seen = {one["verdict"] for one in self.checks.values()}
        return FAILED if FAILED in seen else "incomplete" if NOT_RUN in seen else PASSED

    def write(self) -> None:
        """Write both files."""
        with self._lock:
            listed = [{"model": model, "check": check, **one} for (model, check), one in self.checks.items()]
            record = {"verdict": self.verdict, **self.facts, "checks": listed, "certificates": self.certificates}
            (self._folder / "report.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            (self._folder / "report.md").write_text(page(record), encoding="utf-8")

    def run(self, model: str, check: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run one check, and note what came of it; whatever it raises is its result."""
        began, one = time.perf_counter(), self.checks[model, check]
        print(f"{model}: {check} ... ", end="", flush=True)
        try:
            one |= {"figures": work(), "verdict": PASSED}
        except Exception as error:
            where = traceback.format_exc(limit=-3)
            one |= {"verdict": FAILED, "why": f"{type(error).__name__}: {error}", "where": where}
        one["seconds"] = round(time.perf_counter() - began, 2)
        print(one["verdict"], f"({one['seconds']} s)", *([one["why"]] if one["why"] else []), flush=True)
        self.write()


def page(record: dict[str, Any]) -> str:
    """Return the page in Markdown."""
    lines = [f"# hybridlm on {record.get('device', 'an unknown device')}: {record['verdict']}", ""]
    told = {name: value for name, value in record.items() if isinstance(value, str | int | float)}
    lines += [f"* {name}: {value}" for name, value in told.items() if name != "verdict"]
    lines += ["", "| model | check | verdict | seconds | figures |", "|---|---|---|---|---|"]
    for one in record["checks"]:
        flat = {name: value for name, value in one["figures"].items() if not isinstance(value, dict)}
        figures = ", ".join(f"{name} {_short(value)}" for name, value in flat.items())
        lines.append(f"| {one['model']} | {one['check']} | {one['verdict']} | {one['seconds']} | {figures} |")
    timed = [(one["model"], step) for one in record["checks"] for step in _timed(one["figures"])]
    if timed:
        lines += ["", "| model | step | ms | floor, ms | x floor | as moved, ms | tokens/s |"]
        lines += ["|---|---|---|---|---|---|---|"]
    for model, step in timed:
        times = [f"{1e3 * step[name]:.3f}" for name in ("seconds", "floor_seconds", "moved_seconds")]
        cells = (model, step["step"], *times[:2], f"{step['over_floor']:.2f}", times[2])
        lines.append(f"| {' | '.join(cells)} | {step['tokens_per_second']:,.0f} |")
    if record["certificates"]:
        lines += ["", "| model | step | certificate | scratch, MB | compiled in, s |", "|---|---|---|---|---|"]
    for model, steps in record["certificates"].items():
        for name, one in steps.items():
            cells = (model, name, one["state"], f"{one['temp'] / 1e6:.1f}", f"{one['seconds']:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    for one in record["checks"]:
        if one["why"] is not None:
            told = f"{one['why']}\n\n{one.get('where', '')}".rstrip()
            lines += ["", f"## {one['model']}: {one['check']}", "", "```", told.replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _timed(figures: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in figures.values() if isinstance(value, dict)]


def install(wheels: Path, extra: str, folder: Path) -> Path:
    """Make an environment of wheels, without a network; return its Python.

    Raises:
        SystemExit: wheels are missing; pip has said which.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    offline = ["--no-index", "--find-links", str(wheels), "--only-binary", ":all:", "--quiet"]
    if subprocess.run([python, "-m", "pip", "install", *offline, *needed]).returncode:
        raise SystemExit(f"{wheels}: wheels are missing for {', '.join(needed)}")
    return python


def check(options: argparse.Namespace, folder: Path, deadline: float) -> int:
    """Run every check; return the exit status."""
    import jax
    from device_cases import cases, checks_of, expected, start_references, wait_for, written
    from device_speed import speed

    from hybridlm.compiler.targets import local_target
    from hybridlm.version import __version__

    platform = local_target().platform
    if platform == "cpu" and not options.small:
        print("no GPU or TPU: jax runs on the CPU here; --small checks this script itself", file=sys.stderr)
        return 2
    models = cases(folder, options.small)
    report = Report(options.out, [(case.name, one.__name__) for case in models for one in checks_of(case)])
    device = jax.devices()[0]
    report.facts = {
        "device": device.device_kind, "platform": platform, "backend": device.client.platform_version,
        "hybridlm": __version__, "commit": _commit(), "jax": jax.__version__, "python": sys.version.split()[0],
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }  # fmt: skip
    report.write()
    process = start_references(folder, options.small)

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        report.facts["stopped"] = f"the time of {options.seconds:.0f} s was over"
        report.write()
        print(f"\nstopped after {options.seconds:.0f} s; what was found is in {options.out}", flush=True)
        os._exit(1)

    clock = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    clock.daemon = True
    clock.start()
    try:
        for case in models:
            lm: Any = None
            for one in checks_of(case):

                def work(one: Any = one, case: Any = case) -> dict[str, Any]:
                    nonlocal lm
                    wait_for(written(case, folder), process, folder)
                    lm = case.load() if lm is None else lm
                    if one is not speed:
                        wait_for(expected(case, folder), process, folder)
                    return one(lm, case, expected(case, folder))

                report.run(case.name, one.__name__, work)
            if lm is not None:
                report.certificates[case.name] = {name: _certificate(one) for name, one in lm.certificates.items()}
                report.write()
    finally:
        clock.cancel()
        process.kill()
    print(f"{report.verdict}: {options.out / 'report.md'}, {options.out / 'report.json'}")
    return 0 if report.verdict == PASSED else 1


def _certificate(one: Any) -> dict[str, Any]:
    faults = [str(fault) for fault in one.faults]
    return {"state": one.state, "temp": one.memory.temp, "seconds": one.seconds.compile, "faults": faults}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    """Check the device; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder with wheels of everything that the extra needs")
    parser.add_argument("--extra", default="cuda", help='extra of the wheels: cuda, cuda12, or "" for none')
    parser.add_argument("--out", type=Path, default=Path("device-check"), help="folder for the report")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, help="after which it stops")
    parser.add_argument("--small", action="store_true", help="tiny models only, also on a CPU: a check of this script")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="hybridlm-device-") as folder:
        if options.wheels is not None:
            python = install(options.wheels, options.extra, Path(folder) / "environment")
            left = max(1.0, deadline - time.monotonic())
            rest = ["--out", str(options.out), "--seconds", str(left), *(["--small"] if options.small else [])]
            return subprocess.run([python, __file__, *rest]).returncode
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "cache"))
        return check(options, Path(folder), deadline)


if __name__ == "__main__":
    sys.exit(main())
