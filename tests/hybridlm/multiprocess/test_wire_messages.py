"""The wire format of messages: round trips, and damage found anywhere."""

from typing import Any

import pytest
from message_store import MemoryStore
from model_inputs import request_of

from hybridlm import SamplingParams
from hybridlm.multiprocess.environment import Disagreement
from hybridlm.multiprocess.messages import PART_BYTES, Message, Messages, from_part, to_parts


class Thing:
    """An object that both sides have."""


SETTINGS = SamplingParams(temperature=0.1 + 0.2, stop_token_ids=[9, 3])
REQUEST = request_of(SETTINGS, (5, 6, 7), 3, priority=-2, stop_strings=("\n", "x"), grammar="{}")


def through(*messages: Message, actual: Any = None, reference: Any = None) -> list[Message]:
    store = MemoryStore()
    sender, receiver = Messages(store), Messages(store, (type(REQUEST), type(REQUEST.params)))
    for message in messages:
        sender.send(message, {actual: 4} if actual is not None else {})
    return [receiver.receive({4: reference}) for _ in messages]


@pytest.mark.parametrize("value", [
    None, True, 2**60, 1 / 3, "text", [1, [2.5]], (1, (2, [3])), frozenset({3, 1}), {1: 2.0, "a": (None,)}, REQUEST,
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    sent = [Message("add", {"value": value}, 7), Message("end", {}, 8)]
    result = through(*sent)
    assert result == sent and type(result[0].arguments["value"]) is type(value)


def test_objects_that_both_sides_have_are_sent_as_numbers() -> None:
    actual, reference = Thing(), Thing()
    (result,) = through(Message("step", {"session": actual}, 0), actual=actual, reference=reference)
    assert result.arguments["session"] is reference


@pytest.mark.parametrize(
    ("value", "named"), [(lambda logits: logits, "function"), (Thing(), "Thing"), ([Thing()], "Thing")]
)
def test_other_things_cannot_be_sent(value: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"^logits_processor: a {named} of yours cannot be sent"):
        through(Message("session", {"logits_processor": value}, 0))


def test_large_messages_have_several_parts() -> None:
    sent = Message("score", {"texts": [list(range(400_000))]}, 0)
    parts = to_parts(0, sent, {})
    assert len(parts) == 3 and max(map(len, parts)) < PART_BYTES + 64
    assert through(sent) == [sent]
    with pytest.raises(Disagreement, match="message 0: expected part 0, got 1"):
        from_part(0, 0, parts[1])
    with pytest.raises(Disagreement, match="message 1: expected number 1, got 0; a message was lost"):
        from_part(1, 0, parts[0])


@pytest.mark.parametrize("place", [0, 2, 4, 6, 13, 14, 15, 30, -1])
def test_a_flipped_bit_is_found_wherever_it_is(place: int) -> None:
    (part,) = to_parts(3, Message("add", {"request": REQUEST}, 0), {})
    damaged = bytearray(part)
    damaged[place] ^= 4
    with pytest.raises(Disagreement, match="message 3, part 0: checksum"):
        from_part(3, 0, bytes(damaged))


def test_messages_that_all_have_received_are_forgotten() -> None:
    store = MemoryStore()
    sender = Messages(store)
    for _ in range(600):
        sender.send(Message("step", {}, 0))
    sender.forget(520)
    assert len(store.values) == 600 - 512 and f"message/2/{520}/0" in store.values
