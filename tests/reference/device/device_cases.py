"""Checkpoints that a device is checked with, and the process that writes the large one and computes a CPU's numbers.

python tests/reference/device/device_cases.py FOLDER [small]    # that process
"""

import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]

from device_checks import LARGE, SMALL, Case, Check, golden_case, write_expected  # noqa: E402
from device_kernels import kernels  # noqa: E402

LARGE_MODEL = "752M"
SMALL_MODELS = ("sparse_base", "kimi_base")
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "vocab_size": 4096,
}  # fmt: skip
"""Fields of the large model's config where it is only a check of the checks."""


def cases(folder: Path, small: bool) -> list[Case]:
    """Return the small models, and last the large one, whose files need not be there yet, without and with kernels.

    Args:
        folder: of the large checkpoint.
        small: one small model, and one as small in place of the large one.
    """
    if small:
        sizes = {"lanes": 4, "context": 160, "chunk": 16, "dtype": "bfloat16"}
        return [replace(golden_case(SMALL_MODELS[0]), each_lane=False), Case("tiny", folder / "tiny", sizes, False)]
    sizes = {"lanes": 64, "context": 512, "dtype": "bfloat16"}
    large = Case(LARGE_MODEL, folder / LARGE_MODEL, sizes, False)
    kernels = replace(large, name=f"{LARGE_MODEL}-kernels", settings={**sizes, "kernels": "auto"})
    return [*map(golden_case, SMALL_MODELS), large, kernels]


def checks_of(case: Case) -> tuple[Check, ...]:
    """Return the checks of a case in their order."""
    if "kernels" in case.settings:
        return (kernels, *LARGE)
    return SMALL if case.exact else LARGE


def written(case: Case, folder: Path) -> Path:
    """Return the file that says that a checkpoint is complete."""
    return case.directory / "config.json" if case.exact else folder / f"{case.directory.name}.written"


def expected(case: Case, folder: Path) -> Path:
    """Return the file of a case's numbers."""
    return folder / f"{case.directory.name}.npz"


def write_references(folder: Path, small: bool) -> None:
    """Write the large checkpoint and the numbers of all cases, as this process's platform computes them."""
    sys.path.append(str(ROOT / "scripts" / "benchmarks"))
    *first, large = (case for case in cases(folder, small) if "kernels" not in case.settings)
    for case in first:
        write_expected(case, expected(case, folder))
    config = import_module("bench_models").BENCH_MODELS[LARGE_MODEL]
    import_module("make_bench_checkpoint").write(large.directory, config | (TINY if small else {}), 0)
    written(large, folder).touch()
    write_expected(large, expected(large, folder))


def start_references(folder: Path, small: bool) -> subprocess.Popen[bytes]:
    """Start `write_references` in a process on the CPU, which takes no memory of the device."""
    command = [sys.executable, __file__, str(folder), *(["small"] if small else [])]
    with (folder / "references.log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=log, stderr=log)


def wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the process has written a file.

    Raises:
        RuntimeError: it ended without; has the end of what it said.
    """
    while not file.exists():
        if process.poll() is not None and not file.exists():
            said = (log / "references.log").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"{file.name}: the process on the CPU ended with {process.returncode}: {said}")
        time.sleep(0.05)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write_references(Path(sys.argv[1]), sys.argv[2:] == ["small"])
