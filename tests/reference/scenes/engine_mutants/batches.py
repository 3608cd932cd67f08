"""Wrong operands for lanes: settings, rows and positions of other lanes or earlier steps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced

from hybridlm.engine import decoding, scheduler
from hybridlm.engine.decoding import Decoding
from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.requests.sequence import ActiveSequence, sampling_arrays
from hybridlm.rows.pool import LaneMap, RowPool


def settings_in_order_of_joining(patch: pytest.MonkeyPatch) -> None:
    def sampling(lanes: Sequence[ActiveSequence | None]) -> Any:
        first = [lane for lane in lanes if lane is not None]
        return sampling_arrays([*first, *[None] * (len(lanes) - len(first))])

    for module in (scheduler, decoding):
        patch.setattr(module, "sampling_arrays", sampling)


def operands_kept(patch: pytest.MonkeyPatch, by_lane: bool) -> None:
    """Reuse device operands of other sequences: of any lanes, or of equal idle lanes."""
    right = Decoding._generate

    def generate(self: Decoding, pool: RowPool, lanes: list[ActiveSequence | None], *rest: Any) -> Any:
        if self._steady is not None:
            idle = [lane is None for lane in self._steady[0]]
            if len(idle) == len(lanes) and (not by_lane or idle == [lane is None for lane in lanes]):
                self._steady = (lanes, *self._steady[1:])
        return right(self, pool, lanes, *rest)

    patch.setattr(Decoding, "_generate", generate)


def kept_for_the_shape(patch: pytest.MonkeyPatch) -> None:
    operands_kept(patch, by_lane=False)


def kept_for_the_lanes(patch: pytest.MonkeyPatch) -> None:
    operands_kept(patch, by_lane=True)


@replaced(Scheduler, "_fit_decode_lanes")
def duplicate_after_condensing(right: Any, self: Scheduler, pool: RowPool) -> int:
    previous, lanes = self._decode_lanes, right(self, pool)
    if lanes != previous and len(self.decoding) > 1:
        self.decoding[-1].slot = self.decoding[0].slot
    return lanes


def state_stays_behind(patch: pytest.MonkeyPatch) -> None:
    """Once, the last sequence continues in a free row without its state."""
    right = Scheduler._decode_step
    moved: list[ActiveSequence] = []

    def wrong(self: Scheduler) -> Any:
        pool, sequence = self._pool, self.decoding[-1]
        if not moved and pool is not None and sequence.slot is not None and pool.owner.free and sequence.consumed > 2:
            moved.append(sequence)
            slot = pool.acquire()
            pool.moved(slot, pool.consumed(sequence.slot))
            pool.owner.release(sequence.slot)
            sequence.slot = slot
        return right(self)

    patch.setattr(Scheduler, "_decode_step", wrong)


def lanes_exchanged(patch: pytest.MonkeyPatch) -> None:
    """Once, sequences are computed in each other's rows."""
    right = Scheduler._by_lane
    calls = iter(range(10**9))

    def wrong(self: Scheduler, *about: Any) -> tuple[list[ActiveSequence | None], LaneMap]:
        lanes, lane_map = right(self, *about)
        return ([lanes[1], lanes[0], *lanes[2:]] if next(calls) == 4 else lanes), lane_map

    patch.setattr(Scheduler, "_by_lane", wrong)


@replaced(Scheduler, "_decode_step")
def one_token_further(right: Any, self: Scheduler) -> Any:
    self.decoding[0].consumed += 1
    return right(self)


def one_array_stays_behind(patch: pytest.MonkeyPatch) -> None:
    """Once, one layer's arrays are from before the step, all others from after it."""
    right = Engine.run
    steps = iter(range(10**9))

    def wrong(self: Engine, shape: Any, pool: RowPool, *arguments: Any, **about: Any) -> Any:
        assert isinstance(self.runner, Sanitizer)
        states, labels = jax.tree.map(jnp.copy, pool.look().layers[0]), self.runner.shadow_labels(pool)
        outputs = right(self, shape, pool, *arguments, **about)
        if next(steps) == 4:
            rows = pool.take()
            pool.arrays = rows._replace(layers=(states, *rows.layers[1:]))
            self.runner._shadow_labels[pool] = (*labels[:2], *self.runner._shadow_labels[pool][2:])
        return outputs

    patch.setattr(Engine, "run", wrong)


MUTANTS = (
    EngineMutant("settings-in-order-of-joining", "vLLM#51812",
                 "settings are packed, rows are not: a lane draws by another's", Finder.ALONE,
                 settings_in_order_of_joining),
    EngineMutant("operands-kept-for-the-shape", "ik#2260",
                 "operands on the device are used again for a step of the same shape", Finder.OWNER,
                 kept_for_the_shape),
    EngineMutant("operands-kept-for-the-lanes", "SGLang#39342",
                 "the same, where the same lanes are taken by other sequences", Finder.ALONE, kept_for_the_lanes),
    EngineMutant("duplicate-after-condensing", "vLLM#37728",
                 "two sequences have one row after the number of lanes has changed", Finder.OWNER,
                 duplicate_after_condensing),
    EngineMutant("state-stays-behind", "mlx-lm#1169", "the last sequence goes on in a free row, without its state",
                 Finder.SANITIZER, state_stays_behind),
    EngineMutant("lanes-exchanged", "tenstorrent#51",
                 "the map of lanes is another step's: two sequences in each other's rows", Finder.SANITIZER,
                 lanes_exchanged),
    EngineMutant("one-token-further", "SGLang#31369", "the host counts one token more than the state has seen",
                 Finder.SANITIZER, one_token_further),
    EngineMutant("one-array-stays-behind", "llama.cpp#28019", "one array of a row does not go with the others",
                 Finder.SANITIZER, one_array_stays_behind),
)  # fmt: skip
