"""How long the forms of a matrix product took: files beside the compiled steps, one for each product and machine.

A file that cannot be read, or holds something else than it should, is as good as none: its product is measured anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridlm._machine import Machine
from hybridlm._product_times import forms_of
from hybridlm._replacing import replacing
from ir_passes.fingerprint import fingerprint
from ir_passes.record import MOST_CHARACTERS, RecordError, from_json, to_json
from models.linear import WORDS, Form, Product

VERSION = 6


@dataclass(frozen=True)
class Timed:
    """The least time of a product in one form.

    Attributes:
        form: its name.
        milliseconds: of one product.
    """

    form: str
    milliseconds: float


@dataclass(frozen=True)
class Measured:
    """What is kept of a product.

    Attributes:
        version: of this record.
        machine: where it was measured.
        product: what was measured.
        times: of every form that was measured.
    """

    version: int
    machine: Machine
    product: Product
    times: tuple[Timed, ...]


@dataclass(frozen=True)
class FormStore:
    """A directory of measured products, which any number of processes may read and write.

    Attributes:
        directory: made when the first product is kept.
        machine: the one whose times are found.
    """

    directory: Path
    machine: Machine

    def find(self, product: Product) -> dict[Form, float] | None:
        """The seconds that are kept of each form; None where none are."""
        try:
            with self._path(product).open("rb") as file:
                kept = from_json(Measured, file.read(MOST_CHARACTERS + 1))
        except (OSError, RecordError):
            return None
        can = forms_of(product)
        found: dict[Form, float] = {
            form: 1e-3 * one.milliseconds
            for one in kept.times
            for form in can
            if one.form == form and one.milliseconds > 0
        }
        same = (kept.version, kept.machine, kept.product) == (VERSION, self.machine, product)
        whole = len(found) == len(kept.times) and set(can) - set(WORDS) <= set(found)
        return found if same and whole else None

    def keep(self, product: Product, seconds: Mapping[Form, float]) -> None:
        """Write what was measured; another process sees all of it or nothing.

        Args:
            product: what was measured.
            seconds: the least time of each form.

        Raises:
            OSError: the directory cannot be written.
        """
        times = tuple(Timed(form, round(1e3 * one, 6)) for form, one in seconds.items())
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(product)) as file:
            file.write(to_json(Measured(VERSION, self.machine, product, times)))

    def _path(self, product: Product) -> Path:
        return self.directory / f"{fingerprint((VERSION, self.machine, product))}.json"
