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
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_SECONDS = 480.0
LARGE_MODEL = "752M"
SMALL_MODELS = ("sparse_base", "kimi_base")
NOT_RUN, PASSED, FAILED = "not run", "passed", "FAILED"


class Report:
    """What was found so far; every change is written to both files.

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
        rate = f"{step['tokens_per_second']:,.0f}"
        lines.append(
            f"| {model} | {step['step']} | {times[0]} | {times[1]} | {step['over_floor']:.2f} | {times[2]} | {rate} |"
        )
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


def cases(folder: Path, small: bool) -> list[Any]:
    """Return the small models, and last the large one, whose files need not be there yet."""
    from device_checks import Case, golden_case

    sizes = {"lanes": 4, "context": 160, "chunk": 16} if small else {"lanes": 64, "context": 1024}
    large = Case(f"large ({LARGE_MODEL})", folder / "large", {**sizes, "dtype": "bfloat16"}, False)
    if small:
        large = Case("large (made small)", folder / "large", large.settings, False)
        return [replace(golden_case(SMALL_MODELS[0]), each_lane=False), large]
    return [*map(golden_case, SMALL_MODELS), large]


def write_references(folder: Path, small: bool) -> None:
    """Write the large model and the numbers of all models; runs on the CPU, in a process of its own."""
    from bench_models import BENCH_MODELS
    from device_checks import write_expected
    from make_bench_checkpoint import write

    *first, large = cases(folder, small)
    for case in first:
        write_expected(case, folder / f"{case.name}.npz")
    config = BENCH_MODELS[LARGE_MODEL]
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2}
        heads = {"num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
        config = config | sizes | heads | {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "vocab_size": 4096}
    write(large.directory, config, 0)
    (folder / "large.written").touch()
    write_expected(large, folder / f"{large.name}.npz")


def check(options: argparse.Namespace, folder: Path, deadline: float) -> int:
    """Run every check; return the exit status."""
    import jax
    from device_checks import LARGE, SMALL
    from device_speed import generated_per_second, speeds

    from hybridlm.version import __version__
    from ir_passes.targets import local_target

    platform = local_target().platform
    if platform == "cpu" and not options.small:
        print("no GPU or TPU: jax runs on the CPU here; --small checks this script itself", file=sys.stderr)
        return 2
    models = cases(folder, options.small)
    steps = {case.name: SMALL if case.exact else LARGE for case in models}
    report = Report(options.out, [(name, one.__name__) for name, all in steps.items() for one in all])
    report.checks[models[-1].name, "speed"] = {"verdict": NOT_RUN, "seconds": 0.0, "figures": {}, "why": None}
    device = jax.devices()[0]
    report.facts = {
        "device": device.device_kind, "platform": platform, "backend": device.client.platform_version,
        "hybridlm": __version__, "commit": _commit(), "jax": jax.__version__, "python": sys.version.split()[0],
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }  # fmt: skip
    report.write()
    command = [sys.executable, __file__, "--references", str(folder), *(["--small"] if options.small else [])]
    with (folder / "references.log").open("wb") as log:
        child = subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=log, stderr=log)

    def end() -> None:
        child.kill()
        report.facts["stopped"] = f"the time of {options.seconds:.0f} s was over"
        report.write()
        print(f"\nstopped after {options.seconds:.0f} s; what was found is in {options.out}", flush=True)
        os._exit(1)

    clock = threading.Timer(deadline - time.monotonic(), end)
    clock.daemon = True
    clock.start()
    try:
        for case in models:
            try:
                _wait_for(folder / ("large.written" if not case.exact else f"{case.name}.npz"), child)
                lm = case.load()
            except Exception as error:
                report.run(case.name, steps[case.name][0].__name__, _raising(error))
                continue
            for one in steps[case.name]:

                def work(one: Any = one, case: Any = case, lm: Any = lm) -> dict[str, Any]:
                    expected = folder / f"{case.name}.npz"
                    _wait_for(expected, child)
                    return one(lm, case, expected)

                report.run(case.name, one.__name__, work)
            if not case.exact:

                def timed(lm: Any = lm) -> dict[str, Any]:
                    target, figures, found = speeds(lm, 3 if options.small else 50)
                    faster = [one.step for one in found if one.over_floor < 0.9 and platform != "cpu"]
                    assert not faster, f"faster than the floor of {target.device_kind}: {faster}: {figures}"
                    prompt, count = (16, 8) if options.small else (128, 128)
                    return {**figures, "generate, tokens/s": generated_per_second(lm, prompt, count)}

                report.run(case.name, "speed", timed)
            report.certificates[case.name] = {
                name: {
                    "state": one.state,
                    "temp": one.memory.temp,
                    "seconds": one.seconds.compile,
                    "faults": len(one.faults),
                }
                for name, one in lm.certificates.items()
            }
            report.write()
            del lm
    finally:
        clock.cancel()
        child.kill()
    report.write()
    print(f"{report.verdict}: {options.out / 'report.md'}, {options.out / 'report.json'}")
    return 0 if report.verdict == PASSED else 1


def _raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        raise error

    return work


def _wait_for(file: Path, child: subprocess.Popen[bytes]) -> None:
    """Wait until the process with the CPU's numbers has written a file.

    Raises:
        RuntimeError: it ended without.
    """
    while not file.exists():
        if child.poll() is not None and not file.exists():
            said = (file.parent / "references.log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the process with the CPU's numbers ended with {child.returncode}: {said[-2000:]}")
        time.sleep(0.05)


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
    parser.add_argument("--references", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reference")]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="hybridlm-device-") as folder:
        if options.wheels is not None:
            python = install(options.wheels, options.extra, Path(folder) / "environment")
            left = max(1.0, deadline - time.monotonic())
            rest = ["--out", str(options.out), "--seconds", str(left), *(["--small"] if options.small else [])]
            return subprocess.run([python, __file__, *rest]).returncode
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "cache"))
        if options.references is not None:
            write_references(options.references, options.small)
            return 0
        return check(options, Path(folder), deadline)


if __name__ == "__main__":
    sys.exit(main())
