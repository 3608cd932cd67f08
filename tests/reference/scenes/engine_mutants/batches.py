"""Wrong operands for the lanes of a step: settings, rows and positions of other lanes or of an earlier step."""

from collections.abc import Sequence
from typing import Any

import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm.engine import decoding
from hybridlm.engine.decoding import Decoding
from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.requests import sampling_operands
from hybridlm.requests.sampling_operands import sampling_arrays
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import RowPool


def settings_in_order_of_joining(patch: pytest.MonkeyPatch) -> None:
    def sampling(lanes: Sequence[ActiveSequence | None]) -> Any:
        first = [one for one in lanes if one is not None]
        return sampling_arrays([*first, *[None] * (len(lanes) - len(first))])

    for module in (sampling_operands, decoding):
        patch.setattr(module, "sampling_arrays", sampling)


def operands_kept(patch: pytest.MonkeyPatch, by_lane: bool) -> None:
    """Use operands kept on the device for other sequences: for any, or for those of the same lanes."""
    right = Decoding._generate

    def generate(self: Decoding, pool: RowPool, lanes: list[ActiveSequence | None], *rest: Any) -> Any:
        if self._steady is not None:
            held = [one is None for one in self._steady[0]]
            if len(held) == len(lanes) and (not by_lane or held == [one is None for one in lanes]):
                self._steady = (lanes, *self._steady[1:])
        return right(self, pool, lanes, *rest)

    patch.setattr(Decoding, "_generate", generate)


def kept_for_the_shape(patch: pytest.MonkeyPatch) -> None:
    operands_kept(patch, by_lane=False)


def kept_for_the_lanes(patch: pytest.MonkeyPatch) -> None:
    operands_kept(patch, by_lane=True)


def duplicate_after_condensing(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._resize

    def resize(self: Scheduler, size: int) -> None:
        right(self, size)
        self.decoding[-1].slot = self.decoding[0].slot

    patch.setattr(Scheduler, "_resize", resize)


def state_stays_behind(patch: pytest.MonkeyPatch) -> None:
    """The pool is replaced, and the last sequence moves without its state."""
    right = Scheduler._resize

    def resize(self: Scheduler, size: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            copy, moved = Engine.copy, iter(self.decoding[:-1])
            inner.setattr(Engine, "copy", lambda *rows: copy(*rows) if next(moved, None) else None)
            right(self, size)

    patch.setattr(Scheduler, "_resize", resize)


def lanes_exchanged(patch: pytest.MonkeyPatch) -> None:
    """Once, sequences are computed in each other's rows."""
    right = Scheduler._by_lane
    calls = iter(range(10**9))

    def wrong(self: Scheduler, pool: RowPool, sequences: list[ActiveSequence]) -> list[ActiveSequence | None]:
        lanes = right(self, pool, sequences)
        return [lanes[1], lanes[0], *lanes[2:]] if next(calls) == 4 else lanes

    patch.setattr(Scheduler, "_by_lane", wrong)


def one_token_further(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._decode_step

    def wrong(self: Scheduler) -> Any:
        self.decoding[0].consumed += 1
        return right(self)

    patch.setattr(Scheduler, "_decode_step", wrong)


def never_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "copy", lambda *rows: None)


def one_array_stays_behind(patch: pytest.MonkeyPatch) -> None:
    """The copy of a row forgets one array of the group."""
    right = Engine.copy

    def wrong(self: Engine, source: RowPool, read: Any, target: RowPool, write: Any) -> None:
        before = target.look().layers
        assert isinstance(self.runner, Sanitizer)
        shadow_labels = self.runner.shadow_labels(target)
        right(self, source, read, target, write)
        after = target.take()
        target.put(after._replace(layers=(before[0], *after.layers[1:])))
        kept = self.runner._shadow_labels[target]
        self.runner._shadow_labels[target] = (*shadow_labels[:2], *kept[2:])

    patch.setattr(Engine, "copy", wrong)


MUTANTS = (
    EngineMutant(
        "settings-in-order-of-joining", "vLLM#51812", "settings are packed, rows are not: a lane draws by another's",
        Finder.ALONE, settings_in_order_of_joining,
    ),
    EngineMutant(
        "operands-kept-for-the-shape", "ik#2260", "operands on the device are used again for a step of the same shape",
        Finder.ALONE, kept_for_the_shape,
    ),
    EngineMutant(
        "operands-kept-for-the-lanes", "SGLang#39342", "the same, where the same lanes are taken by other sequences",
        Finder.ALONE, kept_for_the_lanes,
    ),
    EngineMutant(
        "duplicate-after-condensing", "vLLM#37728", "two sequences have one row after the pool was made anew",
        Finder.OWNER, duplicate_after_condensing,
    ),
    EngineMutant(
        "state-stays-behind", "mlx-lm#1169", "the pool is made anew, the last sequence arrives without its state",
        Finder.SANITIZER, state_stays_behind,
    ),
    EngineMutant(
        "lanes-exchanged", "tenstorrent#51", "the map of lanes is another step's: two sequences in each other's rows",
        Finder.SANITIZER, lanes_exchanged,
    ),
    EngineMutant(
        "one-token-further", "SGLang#31369", "the host counts one token more than the state has seen",
        Finder.SANITIZER, one_token_further,
    ),
    EngineMutant(
        "never-copied", "SGLang#26351", "a finished prompt's state does not arrive where it decodes",
        Finder.SANITIZER, never_copied,
    ),
    EngineMutant(
        "one-array-stays-behind", "llama.cpp#28019", "one array of a row is not moved with the others",
        Finder.SANITIZER, one_array_stays_behind,
    ),
)  # fmt: skip
