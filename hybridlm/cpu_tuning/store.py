"""Times of matrix products by variant: files beside the compiled steps, one for each product and machine."""

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
    """The least time of a product in one variant.

    Attributes:
        variant: its name.
        milliseconds: of one product.
    """

    variant: str
    milliseconds: float


@dataclass(frozen=True)
class Measured:
    """A record of one product.

    Attributes:
        version: of this record.
        machine: where it was measured.
        product: what was measured.
        times: of every variant that was measured.
    """

    version: int
    machine: Machine
    product: Product
    times: tuple[Timed, ...]


@dataclass(frozen=True)
class TimeStore(FileStore):
    """A directory of measured products.

    Attributes:
        machine: the one whose times are found.
    """

    machine: Machine

    def find(self, product: Product) -> dict[Variant, float] | None:
        """Return the seconds that are kept of each variant; None where none are."""
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
        """Write what was measured, or log why not; another process sees all of it or nothing.

        Args:
            product: what was measured.
            seconds: the least time of each variant.
        """
        times = tuple(Timed(variant, round(1e3 * one, 6)) for variant, one in seconds.items())
        try:
            content = to_json(Measured(VERSION, self.machine, product, times))
            self.write_file(self._name(product), content.encode())
        except OSError as error:
            _log.warning("the time of a product was not kept, the next process measures it again: %s", error)

    def announce(self, what: str) -> None:
        """Say that something is about to be measured, and how to do without."""
        _log.warning(
            "tune=True: measuring %s, which takes seconds; the times are kept in %s for later processes; load without "
            "tune=True (--tune) to measure nothing",
            what,
            self.directory,
        )

    def _name(self, product: Product) -> str:
        return f"{fingerprint((VERSION, self.machine, product))}.json"
