"""Build the files of a release: Linux wheels, a pure wheel, a source archive.

    python scripts/build_wheels.py [FOLDER] [--check]    # default dist/; about five minutes on two cores

Wheels are built from the source archive, with hatchling and zig in a temporary environment. --check installs each wheel
that this machine runs into a bare environment with its dependencies, and runs the demo, an int8 and a GGUF model.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "manylinux_2_28"
MACHINES = ("x86_64", "aarch64")
BUILD_PACKAGES = ("hatchling>=1.27", "jaxlib>=0.10.2", "ziglang>=0.13")
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""Number of each machine in the header of an ELF file."""
LIBRARY = "models/cpu_kernels/libhybridlm_kernels.so"
CHECK = """
import sys
from pathlib import Path

import numpy as np

import hybridlm
from models.cpu_kernels import library

int8, gguf, kernels = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "kernels"
assert "site-packages" in hybridlm.__file__, hybridlm.__file__
assert (library() is not None) == kernels
lm = hybridlm.load(int8, lanes=4, dtype="float32")
stories = [hybridlm.demo.story(i) for i in hybridlm.demo.UNSEEN[:4]]
completions = lm.generate([story.prompt for story in stories], max_tokens=8)
right = sum(story.reply.strip() in (c.text or "") for story, c in zip(stories, completions, strict=True))
assert right >= 3, [completion.text for completion in completions]
expected = np.load(gguf / "expected.npz")
lm = hybridlm.load(gguf / "model.gguf", lanes=2, dtype="float32")
for number in range(2):
    prompt = expected[f"prompt {number}"].tolist()
    (completion,) = lm.generate([prompt], max_tokens=6, ignore_eos=True)
    assert completion.token_ids == expected[f"greedy {number}"].tolist(), completion
print(f"int8: {right} of 4 answers; GGUF: the expected tokens; kernels: {kernels}")
"""
"""Arguments: folders of an int8 and a GGUF model, and "kernels" or "pure"."""


def environment(folder: Path, *requirements: str) -> Path:
    """Make a virtual environment; return its folder of programs."""
    venv.create(folder, with_pip=True, clear=True)
    programs = folder / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], check=True)
    return programs


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
        wheels = [hatchling("wheel", source, HYBRIDLM_PLATFORM=f"{GLIBC}_{machine}") for machine in MACHINES]
    for wheel, machine in zip(wheels, MACHINES, strict=True):
        header = ZipFile(wheel).read(LIBRARY)[:20]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == ELF_MACHINES[machine], wheel
    assert LIBRARY not in ZipFile(pure).namelist()
    return [archive, pure, *wheels]


def check(wheel: Path) -> None:
    """Install a wheel into a bare environment and run three models.

    Raises CalledProcessError for a failure.
    """
    kernels = not wheel.name.endswith("-any.whl")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HYBRIDLM_", "PYTHON", "XLA_"))}
    with TemporaryDirectory() as name:
        folder = Path(name)
        programs = environment(folder / "bare", f"{wheel}[gguf]")
        gguf = folder / "gguf"
        shutil.copytree(ROOT / "tests" / "golden_quantised" / "gguf-q8_0" / "qwen35", gguf)
        variables = plain | {"HOME": name, "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        variables["HF_HUB_OFFLINE"] = "1"

        def run(*command: str | Path) -> str:
            result = subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True)
            return result.stdout

        print(run(programs / "hybridlm", "demo"))
        demo = run(programs / "python", "-c", "import hybridlm; print(hybridlm.demo.path())").strip()
        run(programs / "hybridlm", "quantise", demo, folder / "int8", "--scheme", "int8")
        print(
            wheel.name, run(programs / "python", "-c", CHECK, folder / "int8", gguf, "kernels" if kernels else "pure")
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="an empty or absent folder")
    parser.add_argument("--check", action="store_true", help="run the wheels of this machine in bare environments")
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: give another folder, or delete it")
    paths = build(options.folder.resolve())
    for path in paths:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")
    if options.check:
        for path in paths:
            if path.suffix == ".whl" and path.name.endswith(("-any.whl", f"_{platform.machine()}.whl")):
                check(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
