"""Build hook: the library of kernels for CPUs is compiled when the package is installed, if there is a C++ compiler.

Without one the package is installed all the same, as a pure Python one, and products are XLA's. The variable
HYBRIDLM_KERNELS changes that: "off" builds none, "required" refuses to go on without. HYBRIDLM_PLATFORM is the tag of a
platform that a wheel is made for on any Linux, manylinux_2_28_x86_64 or manylinux_2_28_aarch64; zig compiles it then.
"""

import os
import sysconfig
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODES = ("auto", "off", "required")
HEADERS = "jaxlib>=0.10.2"
"""Package with XLA's FFI headers; a build without a compiler does not fetch it."""
CROSS_COMPILER = "ziglang>=0.13"
LINUX_NAME = "libhybridlm_kernels.so"


def _builder(root: str) -> Any:
    """The module that compiles, without what is imported with its package."""
    path = Path(root) / "models" / "cpu_kernels" / "build.py"
    spec = spec_from_file_location("cpu_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mode() -> str:
    mode = os.environ.get("HYBRIDLM_KERNELS", "auto")
    if mode not in MODES:
        raise ValueError(f"HYBRIDLM_KERNELS: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")
    return mode


def _is_built(builder: Any) -> bool:
    """Whether the library in the tree is that of its sources; a compiler that was asked for compiles anew."""
    return builder.is_current() and "CXX" not in os.environ


def _platform() -> str | None:
    return os.environ.get("HYBRIDLM_PLATFORM") or None


class KernelsHook(BuildHookInterface):
    """Compile the library into the source tree, from where an editable installation and a wheel take it.

    One for another platform is compiled beside it: the tree keeps its own.
    """

    PLUGIN_NAME = "custom"

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self._built = ExitStack()

    def dependencies(self) -> list[str]:
        """Return what is needed beside hatchling: XLA's headers, where something is compiled."""
        mode, builder = _mode(), _builder(self.root)
        if _platform() is not None:
            return [HEADERS, CROSS_COMPILER]
        wanted = mode == "required" or (mode == "auto" and builder.compiler() is not None)
        return [HEADERS] if wanted and self.target_name == "wheel" and not _is_built(builder) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; an installation without a library is one for any platform."""
        mode, builder, platform = _mode(), _builder(self.root), _platform()
        if platform is not None:
            folder = Path(self._built.enter_context(TemporaryDirectory()))
            library = builder.build(folder / LINUX_NAME, tag=platform)
            self._tag(platform, build_data)
            build_data["force_include"][str(library)] = f"models/cpu_kernels/{LINUX_NAME}"
            return
        if mode == "off":
            return
        try:
            library = builder.LIBRARY if _is_built(builder) else builder.build()
        except builder.BuildError as error:
            if mode == "required":
                raise
            self.app.display_warning(f"no kernels for CPUs are built, products are XLA's: {error}")
            return
        self._tag(sysconfig.get_platform().replace("-", "_").replace(".", "_"), build_data)
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what was compiled for another platform."""
        self._built.close()

    def _tag(self, platform: str, build_data: dict[str, Any]) -> None:
        build_data["pure_python"] = False
        # Python loads the library as a file: one wheel for all its versions.
        build_data["tag"] = f"py3-none-{platform}"
