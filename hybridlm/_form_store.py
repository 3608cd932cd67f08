"""Which form of a matrix product was the fastest: files beside the compiled steps, one for each product and machine.

A file that cannot be read, or holds something else than it should, is as good as none: its product is measured anew.
"""

import os
import platform
from dataclasses import astuple, dataclass
from importlib import metadata
from pathlib import Path
from typing import get_args

import jax

from hybridlm._bench_limits import cores
from hybridlm._replacing import replacing
from ir_passes.fingerprint import fingerprint
from ir_passes.record import MOST_CHARACTERS, RecordError, from_json, to_json
from models.linear import Form, Product

FORMS: tuple[Form, ...] = get_args(Form)
VERSION = 1


@dataclass(frozen=True)
class Machine:
    """What decides how fast a form is.

    Attributes:
        device, processor: their names.
        cores: that this process may use.
        jaxlib, flags: its version, and XLA_FLAGS.
    """

    device: str
    processor: str
    cores: int
    jaxlib: str
    flags: str

    @classmethod
    def here(cls) -> "Machine":
        """The one that this process has."""
        device, flags = jax.devices()[0], " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
        return cls(f"{device.platform} {device.device_kind}", _processor(), cores(), metadata.version("jaxlib"), flags)


@dataclass(frozen=True)
class Measured:
    """What is kept of a product.

    Attributes:
        version: of this record.
        machine: where it was measured.
        rows, outputs, inputs, dtype: the product.
        form: the one that is used.
        milliseconds: the least time of each of FORMS.
    """

    version: int
    machine: Machine
    rows: int
    outputs: int
    inputs: int
    dtype: str
    form: str
    milliseconds: tuple[float, ...]

    @property
    def key(self) -> tuple[int, Machine, Product]:
        """What it holds for."""
        return self.version, self.machine, Product(self.rows, self.outputs, self.inputs, self.dtype)


@dataclass(frozen=True)
class FormStore:
    """A directory of measured forms, which any number of processes may read and write.

    Attributes:
        directory: made when the first form is kept.
        machine: the one whose forms are found.
    """

    directory: Path
    machine: Machine

    def find(self, product: Product) -> Form | None:
        """The form that is kept; None where none is."""
        key = VERSION, self.machine, product
        try:
            with self._path(key).open("rb") as file:
                kept = from_json(Measured, file.read(MOST_CHARACTERS + 1))
        except (OSError, RecordError):
            return None
        return next((form for form in FORMS if kept.key == key and kept.form == form), None)

    def keep(self, product: Product, form: Form, seconds: tuple[float, ...]) -> None:
        """Write what was measured; another process sees all of it or nothing.

        Args:
            product: what was measured.
            form: the one to use.
            seconds: the least time of each of FORMS.

        Raises:
            OSError: the directory cannot be written.
        """
        times = tuple(round(1e3 * one, 4) for one in seconds)
        measured = Measured(VERSION, self.machine, *product, form, times)
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(measured.key)) as file:
            file.write(to_json(measured))

    def _path(self, key: tuple[int, Machine, Product]) -> Path:
        version, machine, product = key
        return self.directory / f"{fingerprint((version, astuple(machine), tuple(product)))}.json"


def _processor() -> str:
    """The name of the CPU, which Python knows of some systems only."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            found = [line.partition(":")[2].strip() for line in file.read(1 << 16).splitlines() if "model name" in line]
    except OSError:
        found = []
    name = found[0] if found else platform.processor() or platform.machine()
    return name.encode("ascii", "replace").decode()
