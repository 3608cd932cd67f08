"""Faults of a verifying layer: in its committed state, or in accepted tokens' outputs."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from engine_mutants.mutant import EngineMutant, Fault, Finder
from jax import Array

from hybridlm.families import LaneInfo, Recurrent
from models.mixers.attention import Attention

_COMMIT, _RECURRENT, _ATTENTION = Recurrent.commit, Recurrent.__call__, Attention.__call__


def _with_lengths(info: LaneInfo, lengths: Array) -> LaneInfo:
    tokens = info.valid.shape[1]
    return info._replace(lengths=lengths, valid=jnp.arange(tokens, dtype=jnp.int32)[None] < lengths[:, None])


def _all_tokens(info: LaneInfo) -> LaneInfo:
    return _with_lengths(info, jnp.where(info.lengths > 0, info.valid.shape[1], 0))


def _shifted(by: int) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        def commit(self: Recurrent, record: Any, info: LaneInfo, state: Any) -> Any:
            lengths = jnp.clip(info.lengths + by, 0, info.valid.shape[1])
            return _COMMIT(self, record, _with_lengths(info, jnp.where(info.lengths > 0, lengths, 0)), state)

        patch.setattr(Recurrent, "commit", commit)

    return fault


def final_state(patch: pytest.MonkeyPatch) -> None:
    def call(self: Recurrent, x: Array, info: LaneInfo, state: Any) -> tuple[Array, Any]:
        return _RECURRENT(self, x, info._replace(verifying=False), state)

    patch.setattr(Recurrent, "__call__", call)
    patch.setattr(Recurrent, "commit", lambda self, record, info, state: record)


def _array_of_all_tokens(array: str) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        def commit(self: Recurrent, record: Any, info: LaneInfo, state: Any) -> Any:
            right = _COMMIT(self, record, info, state)
            return right._replace(**{array: getattr(_COMMIT(self, record, _all_tokens(info), state), array)})

        patch.setattr(Recurrent, "commit", commit)

    return fault


def state_before_the_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recurrent, "commit", lambda self, record, info, state: state)


def _attention(change: Callable[[Array, LaneInfo], Array]) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        def call(self: Attention, x: Array, info: LaneInfo, state: Any) -> tuple[Array, Any]:
            y, state = _ATTENTION(self, x, info, state)
            return change(y, info), state

        patch.setattr(Attention, "__call__", call)

    return fault


def _with_later_tokens(y: Array, info: LaneInfo) -> Array:
    return y + 1e-3 * jnp.sum(jnp.where(info.valid[:, :, None], y, 0.0), axis=1, keepdims=True)


MUTANTS = tuple(
    EngineMutant(id, source, description, Finder.MEASURED, fault)
    for id, source, description, fault in (
        ("state-of-all-drafts", "turboquant#352", "the state after all drafts is committed", final_state),
        ("one-token-too-many", "", "the first rejected draft is committed", _shifted(1)),
        ("one-token-too-few", "turboquant#352", "the last accepted token is not committed", _shifted(-1)),
        ("window-of-all-drafts", "", "the convolution's last inputs are those of drafts", _array_of_all_tokens("conv")),
        (
            "recurrence-of-all-drafts", "",
            "keys, values and convolution inputs are those of accepted tokens, the recurrent state is not",
            _array_of_all_tokens("recurrent"),
        ),
        ("state-stays", "SGLang#26351", "the state before the step is committed", state_before_the_step),
        ("draft-seen-early", "", "attention adds a little of the later tokens", _attention(_with_later_tokens)),
        (
            "other-outputs-while-verifying", "", "a token has other outputs in a step that verifies drafts",
            _attention(lambda y, info: 1.01 * y if info.verifying else y),
        ),
    )
)  # fmt: skip
