"""Our safetensors reader agrees with the library and names every refusal."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hybridlm.checkpoint import ArrayFile, CheckpointError, open_safetensors

FILE = "x.safetensors"
A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """Write a file with this header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def faults(path: Path) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(path)
    assert str(path) in str(caught.value)
    return caught.value.faults


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7), (2, 3, 4)])
def test_files_of_the_library_are_read(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(dtype) for name in ("b", "a", "model.c.weight")}
    save_file(arrays, tmp_path / FILE, metadata={"format": "pt"})
    file = open_safetensors(tmp_path / FILE)
    assert set(file.tensors) == set(arrays)
    assert file.metadata == {"format": "pt"}
    for name, array in arrays.items():
        read = file.read(name)
        assert read.dtype == array.dtype and read.shape == array.shape
        assert read.tobytes() == array.tobytes()


def test_unaligned_data(tmp_path: Path) -> None:
    header = json.dumps({"a": A}).encode()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for padding in range(8):
        file = open_safetensors(write(tmp_path / FILE, header + b" " * padding, values.tobytes()))
        np.testing.assert_array_equal(file.read("a"), values)


def test_views_are_mapped_and_read_only(tmp_path: Path) -> None:
    file = open_safetensors(write(tmp_path / FILE, {"a": A}, bytes(24)))
    array = file.read("a")
    assert not array.flags.writeable and np.may_share_memory(array, np.frombuffer(file._map, np.uint8))
    file.release("a")
    assert not file.read("a").any()


def test_a_file_that_shrinks_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, {"a": A}, bytes(24))
    file = open_safetensors(path)
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="longer when it was opened"):
        file.read("a")


def test_other_dtypes_are_named_when_asked_for(tmp_path: Path) -> None:
    header = {
        "q": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]},
        "i": {"dtype": "I64", "shape": [1], "data_offsets": [4, 12]},
        "f": {"dtype": "F4", "shape": [4], "data_offsets": [12, 14]},
    }
    file = open_safetensors(write(tmp_path / FILE, header, bytes(14)))
    with pytest.raises(CheckpointError, match="q: dtype F8_E4M3 is not read.*BF16, F16, F32.*scales"):
        file.read("q")
    with pytest.raises(CheckpointError, match="i: dtype I64 is not read") as caught:
        file.read("i")
    assert "quantised" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "at least 8 bytes, found 0"),
    (b"1234567", "at least 8 bytes, found 7"),
    (struct.pack("<Q", 3) + b"{}", "a header of 3 bytes, found 2"),
    (struct.pack("<Q", 2**63) + b"{}", "above the limit of 100000000"),
    (struct.pack("<Q", 100_000_001) + b"{}", "above the limit of 100000000"),
    (struct.pack("<Q", 0), "begins with '{'"),
    (struct.pack("<Q", 2) + b"[]", "begins with '{'"),
    (struct.pack("<Q", 3) + b" {}", "begins with '{'"),
    (struct.pack("<Q", 2) + b"{x", "cannot be read as JSON"),
    (struct.pack("<Q", 2) + b"{\xff", "cannot be read as JSON"),
    (struct.pack("<Q", 2) + b"{}!", "1 bytes after the last tensor"),
])  # fmt: skip
def test_frame(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    (fault,) = faults(path)
    assert message in fault


def test_no_file(tmp_path: Path) -> None:
    assert "no regular file" in faults(tmp_path / FILE)[0]
    assert "no regular file" in faults(tmp_path)[0]


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": A | changes}


@pytest.mark.parametrize(("header", "size", "message"), [
    (entry(dtype="F33"), 24, "unknown dtype 'F33'"), (entry(dtype=["F32"]), 24, "unknown dtype ['F32']"),
    (entry(shape=[2, -3]), 24, "expected a shape"), (entry(shape=[2, 3.0]), 24, "expected a shape"),
    (entry(shape=[True, 6]), 24, "expected a shape"), (entry(shape="23"), 24, "expected a shape"),
    (entry(shape=[1] * 65), 24, "at most 64 sizes"), (entry(shape=[2**63]), 24, "expected a shape"),
    (entry(shape=[2, 4]), 24, "F32[2, 4] needs 32 bytes but data_offsets [0, 24] hold 24"),
    (entry(dtype="F4", shape=[3], data_offsets=[0, 1]), 1, "12 bits, not a whole number of bytes"),
    (entry(data_offsets=[24, 0]), 24, "begin <= end"), (entry(data_offsets=[0]), 24, "[begin, end]"),
    (entry(data_offsets=[0, "24"]), 24, "[begin, end]"), (entry(extra=1), 24, "expected the keys"),
    ({"a": [1]}, 24, "expected the keys"),
    ({"a": A, "__metadata__": {"format": 1}}, 24, "__metadata__: expected an object of strings"),
    ({"a": A, "__metadata__": []}, 24, "__metadata__: expected an object of strings"),
    (entry(data_offsets=[4, 28]), 28, "a hole of 4 bytes between it and the header"),
    ({"a": A, "b": A}, 24, "b: overlaps a"),
    ({"a": A, "b": A | {"data_offsets": [20, 44]}}, 44, "b: overlaps a: begins at byte 20, which ends at 24"),
    ({"a": A, "b": A | {"data_offsets": [28, 52]}}, 52, "b: a hole of 4 bytes between it and a"),
    (entry(), 23, "truncated: its data ends at byte 24, the file's at 23"),
    (entry(), 25, "1 bytes after the last tensor: expected 24"),
    (b'{"a": 1, "a": 2}', 0, "duplicate keys ['a']"),
    (b'{"a": {"dtype": "F32", "dtype": "F32"}}', 0, "duplicate keys ['dtype']"),
    (b'{"a": NaN}', 0, "NaN is not JSON"), (b'{"a": ' + b"[" * 100_000 + b"}", 0, "cannot be read as JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", 0, "cannot be read as JSON"), (b'{"\\ud800": {}}', 0, "not valid Unicode"),
])  # fmt: skip
def test_headers(tmp_path: Path, header: Any, size: int, message: str) -> None:
    (fault,) = faults(write(tmp_path / FILE, header, bytes(size)))
    assert message in fault


def test_every_fault_at_once(tmp_path: Path) -> None:
    header = {"a": A | {"dtype": "X"}, "b": A | {"shape": [1]}, "c": 0, "__metadata__": 3}
    messages = faults(write(tmp_path / FILE, header, bytes(24)))
    assert [fault.split(":")[0] for fault in messages] == ["__metadata__", "a", "b", "c"]


def test_empty_tensors_and_no_tensors(tmp_path: Path) -> None:
    header = {"a": A, "z": {"dtype": "BF16", "shape": [0, 5], "data_offsets": [24, 24]}}
    assert open_safetensors(write(tmp_path / FILE, header, bytes(24))).read("z").shape == (0, 5)
    assert not open_safetensors(write(tmp_path / FILE, {"__metadata__": None})).tensors


def opens(path: Path) -> ArrayFile | None:
    """Anything but a CheckpointError goes through to the test."""
    try:
        return open_safetensors(path)
    except CheckpointError as error:
        assert error.faults
        return None


fuzz = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzz
@given(st.binary(max_size=200))
def test_random_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    opens(path)
    write(path, b"{" + content)
    opens(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["F32", "BF16"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@fuzz
@given(st.data())
def test_changed_headers(tmp_path: Path, data: st.DataObject) -> None:
    """Every file that opens here opens in the library with the same content."""
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for index, size in enumerate(sizes):
        header[f"t{index}"] = {"dtype": "F32", "shape": [size], "data_offsets": [end, end + 4 * size]}
        end += 4 * size
    content = np.arange(end, dtype=np.uint8).tobytes()
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(sorted(header)))
        if isinstance(header[name], dict) and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(header[name]) + ["other"]))
            old = header[name].get(key)
            near = [old[::-1], [*old, 1], old[1:]] if isinstance(old, list) else ["F16", "BF16", "U8"]
            header[name] = header[name] | {key: data.draw(st.sampled_from(near) | json_values)}
        else:
            header[name] = data.draw(json_values)
    text = json.dumps(header).encode()
    cut = data.draw(st.just(0) | st.integers(0, 40))
    path = write(tmp_path / FILE, text, content + bytes(data.draw(st.integers(0, 1))))
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    file = opens(path)
    if file is None:
        return
    with safetensors.safe_open(path, "numpy") as other:
        assert set(other.keys()) == set(file.tensors)
        for name, info in file.tensors.items():
            if info.dtype in ("F32", "F16", "BF16") and math.prod(info.shape):
                assert file.read(name).tobytes() == other.get_tensor(name).tobytes()


@fuzz
@given(st.data())
def test_flipped_bytes(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / FILE
    content = bytearray(write(path, {"a": A, "b": A | {"data_offsets": [24, 48]}}, bytes(48)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 49))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    file = opens(path)
    if file is not None:
        for name, info in file.tensors.items():
            if info.dtype in ("F32", "F16", "BF16"):
                assert file.read(name).nbytes == info.end - info.begin
