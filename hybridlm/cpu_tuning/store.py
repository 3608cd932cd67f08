"""Times of matrix products by variant: files beside the compiled steps, one for each product and machine.

A file that cannot be read, or has unexpected content, is ignored: its product is measured again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from hybridlm.cpu_tuning.variants import PACKED, Product, Variant
from hybridlm.devices.machine import Machine
from ir_passes.files.record import from_json, to_json
from ir_passes.files.store import FileStore
from ir_passes.jaxpr.fingerprint import fingerprint

VERSION = 7

_log = logging.getLogger("hybridlm")


@dataclass(frozen=True)
class Timed:
    """Minimum time of a product in one variant.

    Attributes:
        variant: its name.
        milliseconds: time of one product.
    """

    variant: str
    milliseconds: float


@dataclass(frozen=True)
class Measured:
    """Record of one product.

    Attributes:
        version: version of the format.
        machine: machine of the measurement.
        product: the product.
        times: one per measured variant.
    """

    version: int
    machine: Machine
    product: Product
    times: tuple[Timed, ...]


@dataclass(frozen=True)
class TimeStore(FileStore):
    """A directory of measured products, shared by any number of processes.

    Attributes:
        directory: created when the first product is stored.
        machine: the machine whose times are found.
    """

    machine: Machine

    def find(self, product: Product) -> dict[Variant, float] | None:
        """Return the stored seconds of each variant; None if there are none."""
        kept = self.read_record(self._name(product), partial(from_json, Measured))
        if kept is None:
            return None
        can = product.variants
        found: dict[Variant, float] = {
            variant: 1e-3 * one.milliseconds
            for one in kept.times
            for variant in can
            if one.variant == variant and one.milliseconds > 0
        }
        same = (kept.version, kept.machine, kept.product) == (VERSION, self.machine, product)
        whole = len(found) == len(kept.times) and set(can) - set(PACKED) <= set(found)
        return found if same and whole else None

    def keep(self, product: Product, seconds: Mapping[Variant, float]) -> None:
        """Store a measurement, or log why not; another process sees all of it or nothing.

        Args:
            product: the product.
            seconds: minimum time of each variant.
        """
        times = tuple(Timed(variant, round(1e3 * one, 6)) for variant, one in seconds.items())
        try:
            content = to_json(Measured(VERSION, self.machine, product, times))
            self.write_file(self._name(product), content.encode())
        except OSError as error:
            _log.warning("the time of a product was not kept, the next process measures it again: %s", error)

    def announce(self, what: str) -> None:
        """Log that a measurement is about to start, and how to avoid it."""
        _log.warning(
            "tune=True: measuring %s, which takes seconds; the times are kept in %s for later processes; load without "
            "tune=True (--tune) to measure nothing",
            what,
            self.directory,
        )

    def _name(self, product: Product) -> str:
        return f"{fingerprint((VERSION, self.machine, product))}.json"
