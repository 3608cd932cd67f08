"""Build the library of kernels for CPUs: `python -m models.cpu_kernels`.

Runs at installation, by the build hook (hatch_build.py), and by hand after a change of the sources. A file
`*_<instruction set>.cc` is compiled with the flags of its set. Sets are chosen at run time, so a library built anywhere
runs everywhere. Needs a compiler of C++17 (GCC 10 or Clang 11 at least) and the headers of jaxlib. Imports neither JAX
nor the rest of the package: the hook has neither.
"""

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAME = "libhybridlm_kernels.dylib" if sys.platform == "darwin" else "libhybridlm_kernels.so"
LIBRARY = FOLDER / NAME
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
"""Sources choose contractions of products and sums explicitly: bits are equal in every tile."""
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
AVX512BF16 = (*AVX512, "-mavx512bf16", "-mavx512vbmi")
INSTRUCTION_FLAGS = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": AVX512BF16,
    "amx": (*AVX512BF16, "-mamx-tile", "-mamx-bf16"),
    "neonbf16": ("-march=armv8.2-a+bf16",),
}
"""Instruction set -> flags of its files, empty for other machines and compilers without the flags (AMX: GCC 11)."""
ZIG_FLAGS = {"neonbf16": ("-mcpu=generic+bf16",)}
"""The same for zig, which does not accept names of architectures."""


class BuildError(Exception):
    """The library cannot be built; the message has reason and remedy."""


def sources() -> list[Path]:
    """Return the files of the library."""
    return sorted(FOLDER.rglob("*.cc"))


def sources_hash(machine: str = "") -> str:
    """Return a hash of sources, this file and machine; "" for this machine."""
    found = hashlib.sha256(f"{sys.platform} {machine or platform.machine()}\n".encode())
    for path in sorted([*sources(), *FOLDER.rglob("*.h"), FOLDER / "build.py"]):
        found.update(f"{path.relative_to(FOLDER).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def is_current(library: Path = LIBRARY) -> bool:
    """Return whether a library exists and `why_stale` accepts it."""
    return library.is_file() and why_stale(library.read_bytes()) is None


def why_stale(content: bytes) -> str | None:
    """Return why a library's content is stale, or None.

    A stale library has other sources, or headers of a newer jaxlib, which an older one refuses. Without jaxlib, as in a
    build hook, all headers are accepted: the library does not run there.
    """
    if sources_hash().encode() not in content:
        return "was built from other sources than those beside it"
    try:
        header = headers() / "xla/ffi/api/c_api.h"
    except BuildError:
        return None
    here = re.search(
        rb"#define XLA_FFI_API_MAJOR (\d+)\b.*#define XLA_FFI_API_MINOR (\d+)\b", header.read_bytes(), re.DOTALL
    )
    built = re.search(rb"XLA_FFI_API (\d+)\.(\d+)\0", content)
    if here is None or built is None:
        return None
    newer = tuple(map(int, built.groups())) > tuple(map(int, here.groups()))
    return "was built with headers of a newer jaxlib" if newer else None


def compiler() -> list[str] | None:
    """Return the C++ compiler: CXX, or the first of `COMPILERS` on the path, or None."""
    if os.name != "posix":
        return None
    asked = shlex.split(os.environ.get("CXX", ""))
    found = next(filter(None, map(shutil.which, asked[:1] or COMPILERS)), None)
    return None if found is None else [found, *asked[1:]]


def missing_compiler() -> str:
    """Return an error message for a missing compiler."""
    asked = os.environ.get("CXX")
    expected = f"that of CXX={asked!r}" if asked else f"CXX or one of {', '.join(COMPILERS)}"
    return f"a C++ compiler: expected {expected} on the path, found none"


def cross_compiler(tag: str) -> tuple[list[str], str]:
    """Return a compiler for a platform's tag, from the package ziglang, and its machine.

    Args:
        tag: "manylinux_2_28_x86_64" or another version of glibc, or "aarch64".

    Raises:
        BuildError: unknown platform.
    """
    found = re.fullmatch(r"manylinux_(\d+)_(\d+)_(x86_64|aarch64)", tag)
    if found is None:
        raise BuildError(f"platform: expected manylinux_<glibc>_x86_64 or manylinux_<glibc>_aarch64, got {tag!r}")
    major, minor, machine = found.groups()
    target = f"{machine}-linux-gnu.{major}.{minor}"
    return [sys.executable, "-m", "ziglang", "c++", "-target", target, "-g0", "-s"], machine


def understands(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Return whether a compiler knows an instruction set's flags; otherwise it omits the set's code."""
    probe = [*command, *flags, "-E", "-x", "c++", os.devnull]
    return subprocess.run(probe, capture_output=True).returncode == 0


def headers() -> Path:
    """Return the folder of XLA's headers, `jax.ffi.include_dir()` without importing JAX.

    Raises:
        BuildError: jaxlib or its headers are missing.
    """
    from importlib.util import find_spec

    spec = find_spec("jaxlib")
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        if (folder := Path(place) / "include").joinpath("xla/ffi/api/ffi.h").is_file():
            return folder
    raise BuildError("XLA's headers: expected jaxlib with include/xla/ffi/api/ffi.h, found none; install jaxlib")


def build(
    target: Path = LIBRARY, *, program: Sequence[Path] = (), flags: Sequence[str] = (), tag: str | None = None
) -> Path:
    """Compile and link the library; replace an older file atomically.

    Args:
        program: sources and libraries of a program to make instead.
        flags: additional flags of compiler and linker, for example of a sanitizer.
        tag: platform, as for `cross_compiler`; None for this machine.

    Raises:
        BuildError: compiler or headers are missing, or the compiler fails.
    """
    command, machine = (compiler(), platform.machine()) if tag is None else cross_compiler(tag)
    if command is None:
        raise BuildError(missing_compiler())
    include = headers()
    compiled = [one for one in program if one.suffix == ".cc"] if program else sources()
    libraries = [str(one) for one in program if one.suffix != ".cc"]
    # In the target's folder, which is trusted for the result; other users may write to other folders.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as temporary:
        objects = {path: Path(temporary) / f"{path.stem}.o" for path in compiled}

        def compile_one(path: Path) -> None:
            name = path.stem.rpartition("_")[2]
            here = machine in ("aarch64", "arm64") if name.startswith("neon") else machine == "x86_64"
            known = INSTRUCTION_FLAGS if tag is None else INSTRUCTION_FLAGS | ZIG_FLAGS
            own = known.get(name, ()) if here else ()
            if own and not understands(command, own):
                own = ()
            defined = f'-DHYBRIDLM_SOURCES="{sources_hash(machine)}"'
            places = ("-isystem", str(include), "-I", str(FOLDER))
            _run([*command, *FLAGS, *own, *flags, defined, *places, "-c", str(path), "-o", str(objects[path])])

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
            list(threads.map(compile_one, compiled))
        made = Path(temporary) / target.name
        kind = [] if program else ["-shared"]
        _run([*command, *kind, *flags, *map(str, objects.values()), *libraries, "-pthread", "-o", str(made)])
        os.replace(made, target)
    return target


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-4000:]}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        print(f"built {build()}")
    except BuildError as error:
        sys.exit(str(error))
