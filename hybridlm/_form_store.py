"""Which form of a matrix product was the fastest: files beside the compiled steps, one for each product and machine.

A file that cannot be read, or holds something else than it should, is as good as none: its product is measured anew.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hybridlm._machine import Machine
from hybridlm._replacing import replacing
from ir_passes.fingerprint import fingerprint
from ir_passes.record import MOST_CHARACTERS, RecordError, from_json, to_json
from models.linear import Form, Product

FORMS: tuple[Form, ...] = get_args(Form)
VERSION = 3


@dataclass(frozen=True)
class Measured:
    """What is kept of a product.

    Attributes:
        version: of this record.
        machine: where it was measured.
        product: what was measured.
        form: the one that is used.
        milliseconds: the least time of each form that was measured, in their order in FORMS.
    """

    version: int
    machine: Machine
    product: Product
    form: str
    milliseconds: tuple[float, ...]


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
        try:
            with self._path(product).open("rb") as file:
                kept = from_json(Measured, file.read(MOST_CHARACTERS + 1))
        except (OSError, RecordError):
            return None
        same = (kept.version, kept.machine, kept.product) == (VERSION, self.machine, product)
        return next((form for form in FORMS if same and kept.form == form), None)

    def keep(self, product: Product, form: Form, seconds: tuple[float, ...]) -> None:
        """Write what was measured; another process sees all of it or nothing.

        Args:
            product: what was measured.
            form: the one to use.
            seconds: the least time of each form that was measured.

        Raises:
            OSError: the directory cannot be written.
        """
        times = tuple(round(1e3 * one, 4) for one in seconds)
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(product)) as file:
            file.write(to_json(Measured(VERSION, self.machine, product, form, times)))

    def _path(self, product: Product) -> Path:
        return self.directory / f"{fingerprint((VERSION, self.machine, product))}.json"
