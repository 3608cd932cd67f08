"""Rows taken, begun on, given back and begun again by the wrong rules."""

import itertools
from typing import Any

import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced

from hybridlm.engine import scheduler
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.steps.operands import Feed
from ir_passes.host.slot_owner import Slot, SlotOwner


def row_by_request_number(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    def by_number(self: SlotOwner, number: int | None = None) -> Slot:
        return self._issue(next(numbers) % self.size)

    patch.setattr(SlotOwner, "acquire", by_number)


@replaced(SlotOwner, "release")
def freed_twice(right: Any, self: SlotOwner, slot: Slot) -> None:
    right(self, slot)
    right(self, slot)


@replaced(Scheduler, "leave")
def cancelled_keeps_its_row(right: Any, self: Scheduler, sequence: ActiveSequence) -> None:
    for sequences in (self.prefilling, self.decoding):
        if sequence in sequences:
            sequences.remove(sequence)
    right(self, sequence)


@replaced(scheduler, "Feed")
def one_token_prompt_goes_on(_: Any, tokens: tuple[int, ...], position: int) -> Feed:
    return Feed(tokens, 1 if len(tokens) == 1 and position == 0 else position)


def begins_again_on_its_state(patch: pytest.MonkeyPatch) -> None:
    """A sequence that was put back reads its prompt again on its old state."""
    consumed: dict[ActiveSequence, int] = {}
    right = Scheduler._prefill

    def prefill(self: Scheduler, leader: ActiveSequence) -> object:
        for sequence in self.prefilling:
            if sequence.consumed and sequence not in consumed:
                consumed[sequence], sequence.consumed = sequence.consumed, 0
        return right(self, leader)

    def feed(tokens: tuple[int, ...], position: int) -> Feed:
        return Feed(tokens, next(reversed(consumed.values())) if consumed and position == 0 else position)

    patch.setattr(Scheduler, "_prefill", prefill)
    patch.setattr(scheduler, "Feed", feed)


MUTANTS = (
    EngineMutant("row-by-request-number", "kekzl/imp#500",
                 "the row is the request's number modulo the rows of the pool", Finder.OWNER, row_by_request_number),
    EngineMutant("freed-twice", "mistral.rs#2357", "a row is given back twice", Finder.OWNER, freed_twice),
    EngineMutant("cancelled-keeps-its-row", "kekzl/imp#501", "a sequence that leaves early does not give its row back",
                 Finder.OWNER, cancelled_keeps_its_row),
    EngineMutant("one-token-prompt", "vLLM#32118", "a prompt of one token goes on where the tenant before has stopped",
                 Finder.ALONE, one_token_prompt_goes_on),
    EngineMutant("put-back", "vllm-metal#488", "a prompt is read again from its start, on the state as it was",
                 Finder.SANITIZER, begins_again_on_its_state),
)  # fmt: skip
