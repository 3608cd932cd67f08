"""The wire decoder reads protobuf's encoding and refuses truncated input."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir_passes.xla_audit.wire import Field, WireMessage, decode

INNER = WireMessage("Inner", {1: Field("number", "int"), 300: Field("text", "str")})
OUTER = WireMessage(
    "Outer",
    {
        1: Field("number", "int"), 2: Field("flag", "bool"), 3: Field("text", "str"), 4: Field("data", "bytes"),
        5: Field("numbers", "int", repeated=True), 6: Field("inner", "message", message=INNER),
        7: Field("inners", "message", repeated=True, message=INNER), 8: Field("children", "message", repeated=True),
        9: Field("dropped", "skip"),
    },
    rest="rest",
)  # fmt: skip


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode(value: dict[str, Any], message: WireMessage, packed: bool) -> bytes:
    """protobuf's encoding, zeros left out as proto3 does."""
    out = b""
    for number, field in message.fields.items():
        if field.kind == "skip":
            continue
        entry = value[field.name]
        if field.kind == "int" and field.repeated and packed:
            out += block(number, b"".join(map(varint, entry))) if entry else b""
            continue
        for item in entry if field.repeated else [entry] if entry else []:
            if field.kind in ("int", "bool"):
                out += varint(number << 3) + varint(int(item))
            elif field.kind == "message":
                out += block(number, encode(item, field.message or message, packed))
            else:
                out += block(number, item.encode() if isinstance(item, str) else item)
    return out


INTS = st.integers(-(1 << 63), (1 << 63) - 1)
INNERS = st.fixed_dictionaries({"number": INTS, "text": st.text(max_size=5)})


def outers(children: Any) -> Any:
    return st.fixed_dictionaries(
        {
            "number": INTS, "flag": st.booleans(), "text": st.text(max_size=200), "data": st.binary(max_size=200),
            "numbers": st.lists(INTS, max_size=4).map(tuple), "inner": st.none() | INNERS,
            "inners": st.lists(INNERS, max_size=3).map(tuple), "children": children, "rest": st.just(b""),
        }
    )  # fmt: skip


VALUES = st.recursive(outers(st.just(())), lambda inner: outers(st.lists(inner, max_size=2).map(tuple)), max_leaves=4)


@given(VALUES, st.booleans())
def test_round_trip(value: dict[str, Any], packed: bool) -> None:
    assert decode(encode(value, OUTER, packed), OUTER) == value


@given(VALUES, st.data())
def test_cut_off_anywhere_is_refused_or_ends_between_fields(value: dict[str, Any], data: st.DataObject) -> None:
    ids = encode(value, OUTER, packed=True)
    ends = {0}
    for number in range(1, 10):
        part = OUTER.fields.get(number)
        if part is not None and part.kind != "skip":
            only = dict(OUTER.blank) | {part.name: value[part.name]}
            length = len(encode(only, OUTER, packed=True))
            ends.add(max(ends) + length)
    assert max(ends) == len(ids)
    cut = data.draw(st.integers(0, len(ids)))
    repeated = ("inners", "children")
    try:
        text = decode(ids[:cut], OUTER)
    except ValueError:
        assert cut not in ends
    else:
        # Only a boundary between fields, or between the items of a list of messages, can go unnoticed.
        assert cut in ends or any(len(text[name]) < len(value[name]) for name in repeated)


def test_absent_fields_are_zero() -> None:
    assert decode(b"", OUTER) == {
        "number": 0, "flag": False, "text": "", "data": b"", "numbers": (), "inner": None, "inners": (),
        "children": (), "rest": b"",
    }  # fmt: skip


def test_unknown_fields_are_kept_verbatim_and_skipped_ones_are_not() -> None:
    unknown_value = (
        block(20, b"abc")
        + varint(21 << 3 | 5)
        + b"1234"
        + varint(22 << 3 | 1)
        + b"12345678"
        + varint(23 << 3)
        + b"\x07"
    )
    text = decode(varint(9 << 3) + b"\x01" + unknown_value + varint(1 << 3) + b"\x02", OUTER)
    assert (text["number"], text["rest"]) == (2, unknown_value)
    assert "dropped" not in text


@pytest.mark.parametrize(("data", "message"), [
    (varint(3 << 3 | 2) + varint(9) + b"short", "Outer.text: 9 bytes announced at 2, only 5 left"),
    (varint(1 << 3) + b"\x80" * 11, "Outer: the number at byte 1 does not end before byte 11"),
    (varint(1 << 3) + b"\xff", "does not end before byte 2"),
    (block(5, varint(300) + b"\x81"), "Outer: the number at byte 4 does not end before byte 5"),
    (block(5, b"\x80" * 11 + b"\x01"), "Outer: the number at byte 2 does not end before byte 12"),
    (block(1, b"\x01"), "Outer.number: expected a varint at 0, got 1 bytes"),
    (varint(3 << 3) + b"\x01", "Outer.text: expected str at 0, got wire type 0"),
    (varint(40 << 3 | 3), "wire type 3, which proto3 does not use"),
    (varint(40 << 3 | 5) + b"123", "field 40 announces 4 bytes at 2, only 3 are left"),
    (block(6, varint(300 << 3 | 2) + varint(1 << 40)), "Inner.text"),
])  # fmt: skip
def test_malformed_input_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(data, OUTER)


def test_an_inner_message_cannot_read_past_its_end() -> None:
    """The inner message announces fewer bytes than its field needs."""
    inner = varint(300 << 3 | 2) + varint(4) + b"ab"
    with pytest.raises(ValueError, match="4 bytes announced"):
        decode(block(6, inner) + block(3, b"more text follows"), OUTER)
