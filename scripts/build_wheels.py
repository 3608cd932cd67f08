"""Build the files of a release: Linux wheels, a pure wheel, a source archive.

    python scripts/build_wheels.py [FOLDER] [--check] [--emulate]    # default dist/; about five minutes on two cores

Wheels are built from the source archive, with hatchling and zig in a temporary environment. --check installs this
machine's wheels into bare environments, and runs the demo, an int8 and a GGUF model. --emulate does this with all
wheels, by QEMU and Debian's Python, in ten more minutes.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 28)
BUILD_PACKAGES = ("hatchling>=1.27", "jaxlib>=0.10.2", "ziglang>=0.13")
MACHINES = {"x86_64": (62, "amd64"), "aarch64": (183, "arm64")}
"""Number of each machine in the header of an ELF file, and Debian's name of it."""
LIBRARY = "models/cpu_kernels/libhybridlm_kernels.so"
TOLERANCE = 4e-3
"""Absolute, on log-probabilities in float32: twice the tolerance of Qwen3.5's logits (tests/reference)."""
CHECK = """
import json
import platform
import sys
from pathlib import Path

import numpy as np

import hybridlm
from models.cpu_kernels import library

int8, gguf, machine = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
assert Path("site").resolve() in Path(hybridlm.__file__).resolve().parents, hybridlm.__file__
kernels = library()
assert (kernels is not None) == (machine != "any"), f"{machine}: {kernels}"
assert machine in ("any", platform.machine()), platform.machine()
lm = hybridlm.load(int8, lanes=4, dtype="float32")
stories = [hybridlm.demo.story(i) for i in hybridlm.demo.UNSEEN[:4]]
completions = lm.generate([story.prompt for story in stories], max_tokens=8)
right = sum(story.reply.strip() in (c.text or "") for story, c in zip(stories, completions, strict=True))
assert right >= 3, [completion.text for completion in completions]
logprobs = [float(value) for score in lm.score([story.prompt for story in stories]) for value in score.logprobs[1:]]
expected = np.load(gguf / "expected.npz")
lm = hybridlm.load(gguf / "model.gguf", lanes=2, dtype="float32")
worst = 0.0
for number in range(2):
    prompt = expected[f"prompt {number}"]
    (completion,) = lm.generate([prompt.tolist()], max_tokens=6, ignore_eos=True)
    assert completion.token_ids == expected[f"greedy {number}"].tolist(), completion
    logits = expected[f"logits {number}"][:-1].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), prompt[1:, None], 1)[:, 0]
    worst = max(worst, float(np.abs(lm.score([prompt.tolist()])[0].logprobs[1:] - chosen).max()))
assert worst <= float(sys.argv[4]), f"GGUF: log-probabilities differ by {worst:.1e} from the expected ones"
name = "no kernels" if kernels is None else f"kernels {kernels.instructions}"
print(f"{name}; int8: {right} of 4 answers; GGUF: the expected tokens, log-probabilities within {worst:.0e}")
print(json.dumps(logprobs))
"""
"""Arguments: folders of an int8 and a GGUF model, the wheel's machine or "any", a tolerance.

The last printed line has log-probabilities of the int8 model as JSON.
"""


class Bare(NamedTuple):
    """Environment with one wheel: the command of its `python`, the `program` hybridlm, further `variables`."""

    python: tuple[str | Path, ...]
    program: Path
    variables: dict[str, str]


def environment(folder: Path, *requirements: str) -> Path:
    """Make a virtual environment; return its folder of programs."""
    venv.create(folder, with_pip=True, clear=True)
    programs = folder / "bin"
    if requirements:
        pip(programs, *requirements)
    return programs


def pip(programs: Path, *arguments: str | Path) -> None:
    subprocess.run([programs / "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def emulated(folder: Path, wheel: Path, machine: str) -> Bare:
    """Install a wheel and its dependencies for another machine, with Debian's Python."""
    python = debian_python(folder / "root", folder / "apt", MACHINES[machine][1])
    major, minor = GLIBC
    # pip accepts a tag only if it is named.
    platforms = [f"--platform=manylinux_{major}_{version}_{machine}" for version in range(17, minor + 1)]
    platforms.append(f"--platform=manylinux2014_{machine}")
    version = python.name.removeprefix("python")
    site = folder / "site"
    options = ("--target", site, "--only-binary=:all:", "--python-version", version, *platforms)
    pip(environment(folder / "pip"), *options, f"{wheel}[gguf]")
    # Most of the emulated time would be LLVM's.
    variables = {"PYTHONPATH": str(site), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return Bare((f"qemu-{machine}", "-L", folder / "root", python), site / "bin" / "hybridlm", variables)


def debian_python(root: Path, state: Path, architecture: str) -> Path:
    """Unpack Debian's Python for an architecture into `root`; returns the interpreter.

    apt-get has its lists and status in `state`: nothing is installed.

    Raises:
        CalledProcessError: the machine's package sources have no packages of the architecture.
    """
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": 1,
        "Dir::Cache": state / "cache",
        "Dir::State": state,
        "Dir::State::status": state / "status",
    }
    apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    packages = ("python3", "libstdc++6")
    command = [*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    return (root / "usr" / "bin" / "python3").resolve()


def build(output: Path) -> list[Path]:
    """Build the source archive, then the wheels from it; return all files."""
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        python = environment(Path(folder, "build"), *BUILD_PACKAGES) / "python"

        def hatchling(target: str, source: Path, **variables: str) -> Path:
            earlier_files = set(output.iterdir())
            command = [python, "-m", "hatchling", "build", "-t", target, "-d", str(output)]
            plain = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDLM_")}
            subprocess.run(command, cwd=source, check=True, env=plain | variables)
            paths = set(output.iterdir()) - earlier_files
            assert len(paths) == 1, f"{output}: expected one new file, got {sorted(paths)}; give an empty folder"
            return paths.pop()

        archive = hatchling("sdist", ROOT)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        source = Path(folder, archive.name.removesuffix(".tar.gz"))
        pure = hatchling("wheel", source, HYBRIDLM_KERNELS="off")
        tag = "manylinux_{}_{}".format(*GLIBC)
        wheels = [hatchling("wheel", source, HYBRIDLM_PLATFORM=f"{tag}_{machine}") for machine in MACHINES]
    for wheel, machine in zip(wheels, MACHINES, strict=True):
        header = ZipFile(wheel).read(LIBRARY)[:20]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == MACHINES[machine][0], wheel
    assert LIBRARY not in ZipFile(pure).namelist()
    return [archive, pure, *wheels]


def machine_of(wheel: Path) -> str:
    """Return "x86_64", "aarch64", or "any" for a pure wheel."""
    match = re.search(f"_({'|'.join(MACHINES)})$", wheel.stem)
    return match[1] if match else "any"


def check(wheel: Path) -> list[float]:
    """Install a wheel into a bare environment and run three models.

    Returns log-probabilities of the int8 model; raises CalledProcessError for a failure.
    """
    machine = machine_of(wheel)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HYBRIDLM_", "PYTHON", "XLA_"))}
    with TemporaryDirectory() as name:
        folder = Path(name)
        if machine in ("any", platform.machine()):
            programs = environment(folder / "site", f"{wheel}[gguf]")
            bare = Bare((programs / "python",), programs / "hybridlm", {})
        else:
            bare = emulated(folder, wheel, machine)
        gguf = folder / "gguf"
        shutil.copytree(ROOT / "tests" / "golden_quantised" / "gguf-q8_0" / "qwen35", gguf)
        variables = plain | {"HOME": name, "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        variables |= {"HF_HUB_OFFLINE": "1"} | bare.variables

        def run(*arguments: str | Path) -> str:
            command = [*bare.python, *arguments]
            result = subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True)
            return result.stdout

        print(run(bare.program, "demo"), flush=True)
        demo = run("-c", "import hybridlm; print(hybridlm.demo.path())").strip()
        run(bare.program, "quantise", demo, folder / "int8", "--scheme", "int8")
        summary, logprobs = run("-c", CHECK, folder / "int8", gguf, machine, str(TOLERANCE)).splitlines()[-2:]
        print(f"{wheel.name}: {summary}", flush=True)
        return json.loads(logprobs)


def check_all(wheels: list[Path]) -> None:
    """Check wheels and compare their int8 log-probabilities with the first one's.

    Raises SystemExit where they differ by more than `TOLERANCE`.
    """
    expected, *scores = [check(wheel) for wheel in wheels]
    for wheel, logprobs in zip(wheels[1:], scores, strict=True):
        worst = max(abs(value - other) for value, other in zip(expected, logprobs, strict=True))
        message = f"{wheel.name}: int8 log-probabilities within {worst:.0e} of those of {wheels[0].name}"
        print(message)
        if not worst <= TOLERANCE:
            sys.exit(f"{message}, expected {TOLERANCE:.0e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="an empty or absent folder")
    parser.add_argument("--check", action="store_true", help="run the wheels of this machine in bare environments")
    parser.add_argument("--emulate", action="store_true", help="--check, and the other machine's wheel by QEMU")
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: give another folder, or delete it")
    emulated = [machine for machine in MACHINES if machine != platform.machine()]
    programs = [*(f"qemu-{machine}" for machine in emulated), "apt-get", "dpkg-deb"] if options.emulate else []
    if missing := [program for program in programs if shutil.which(program) is None]:
        parser.error(
            f"--emulate: expected {', '.join(programs)} on the path, missing {', '.join(missing)}; install the package "
            "qemu-user on a Debian, or run --check on the other machine"
        )
    paths = build(options.folder.resolve())
    for path in paths:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}", flush=True)
    if options.check or options.emulate:
        machines = {"any", platform.machine(), *(emulated if options.emulate else ())}
        check_all([path for path in paths[1:] if machine_of(path) in machines])
    return 0


if __name__ == "__main__":
    sys.exit(main())
