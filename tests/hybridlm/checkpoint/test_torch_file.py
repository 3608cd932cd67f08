"""pytorch_model.bin: arrays of plain state dicts; everything else is refused by name, and nothing runs."""

import os
import pickle
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridlm.checkpoint import CheckpointError
from hybridlm.checkpoint.torch_file import MAX_DIRECTORY_BYTES, open_torch

GOLDEN = Path(__file__).parents[2] / "golden"
ORIGINAL = GOLDEN.with_name("golden_original") / "mamba2_base" / "pytorch_model.bin"
"""Written by torch."""
NUMBERS = np.arange(12, dtype=np.float32)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


def group(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


ORDERED = name("collections", "OrderedDict") + b")R"
FLOATS = name("torch", "FloatStorage")


def storage(key: str = "0", count: int = 12, kind: bytes = FLOATS) -> bytes:
    return group(text("storage"), kind, text(key), text("cpu"), number(count)) + b"Q"


def tensor(
    shape: tuple[int, ...] = (4, 3),
    strides: tuple[int, ...] = (3, 1),
    offset: int = 0,
    content: bytes | None = None,
    hooks: bytes = ORDERED,
) -> bytes:
    sizes = (group(*map(number, values)) for values in (shape, strides))
    parts = (storage() if content is None else content, number(offset), *sizes, b"\x89", hooks)
    return name("torch._utils", "_rebuild_tensor_v2") + group(*parts) + b"R"


def state_dict(**items: bytes) -> bytes:
    """The opcodes of a state dict; the protocol in front."""
    return b"\x80\x02" + ORDERED + b"(" + b"".join(text(key) + item for key, item in items.items()) + b"u."


def write(path: Path, data: bytes, entries: Mapping[str, bytes] | None = None, compression: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("m/data.pkl", data)
        for key, value in ({"m/data/0": NUMBERS.tobytes()} if entries is None else entries).items():
            archive.writestr(key, value)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_torch(path)
    return str(caught.value)


def test_arrays_of_a_file_of_torch() -> None:
    """Names and bits of the safetensors file with the same numbers."""
    file, expected = open_torch(ORIGINAL), load_file(GOLDEN / "mamba2_base" / "model.safetensors")
    renamed = {key.replace("embeddings.", "embedding."): array for key, array in expected.items()}
    assert file.tensors.keys() == renamed.keys()
    for key, array in renamed.items():
        assert file.read(key).dtype == array.dtype and not file.read(key).flags.writeable
        assert np.array_equal(file.read(key).astype(np.float32), array.astype(np.float32)), key


def test_views_of_one_storage(tmp_path: Path) -> None:
    parts = {"a": tensor(), "b": tensor(), "part": tensor((2, 3), offset=6), "none": tensor((0, 3))}
    parts |= {"row": tensor((1, 12), (1, 1)), "single": tensor((), ())}
    parts["parameter"] = name("torch._utils", "_rebuild_parameter") + group(tensor(), b"\x88", ORDERED) + b"R"
    file = open_torch(write(tmp_path / "x.bin", state_dict(**parts)))
    for key in ("a", "b", "parameter"):
        assert np.array_equal(file.read(key), NUMBERS.reshape(4, 3))
    assert np.array_equal(file.read("part"), NUMBERS[6:].reshape(2, 3))
    assert file.read("none").shape == (0, 3) and file.read("row").shape == (1, 12) and file.read("single").shape == ()


class Bomb:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_no_code_of_a_file_runs(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"a": Bomb(tmp_path / "ran")}, protocol)
    assert "data.pkl: " in refused(write(tmp_path / "x.bin", data)) and not (tmp_path / "ran").exists()
    pickle.loads(data)  # noqa: S301  # the test's own: it does run elsewhere
    assert (tmp_path / "ran").exists()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "function": (state_dict(a=name("os", "system") + group(text("true")) + b"R"), "names 'os.system'"),
    "builtin": (state_dict(a=name("builtins", "eval") + group(text("1")) + b"R"), "names 'builtins.eval'"),
    "near name": (state_dict(a=name("torch._utils", "_rebuild_tensor_v3")), "names 'torch._utils._rebuild_tensor_v3'"),
    "instance": (b"\x80\x02(ios\nsystem\n.", "opcode INST"),
    "object": (b"\x80\x02(" + name("collections", "OrderedDict") + b"o.", "opcode OBJ"),
    "new": (b"\x80\x02" + name("collections", "OrderedDict") + b")\x81.", "opcode NEWOBJ"),
    "extension": (b"\x80\x02\x82\x01.", "opcode EXT1"), "persistent text": (b"\x80\x02P0\n.", "opcode PERSID"),
    "protocol": (b"\x80\x04].", "expected pickle protocol 2, found 4"), "list": (b"\x80\x02].", "opcode EMPTY_LIST"),
    "no dict": (b"\x80\x02" + tensor() + b".", "expected a state dict, found a StoredTensor"),
    "nested": (state_dict(model=ORDERED), "'model': expected a tensor, found a dict"),
    "key": (b"\x80\x02}" + number(1) + tensor() + b"s.", "key 1: expected texts"),
    "twice": (b"\x80\x02}(" + (text("a") + tensor()) * 2 + b"u.", "key 'a': expected texts, each once"),
    "attributes": (b"\x80\x02" + ORDERED + b"}" + text("x") + number(1) + b"sb.", "attributes of a dict"),
    "transposed": (state_dict(a=tensor((3, 4), (1, 3))), "with strides [1, 3]: expected a contiguous one"),
    "overlapping": (state_dict(a=tensor((4, 3), (0, 1))), "with strides [0, 1]"),
    "too long": (state_dict(a=tensor((5, 3), (3, 1))), "a tensor [5, 3] from 0, in a storage of 12 numbers"),
    "behind": (state_dict(a=tensor(offset=1)), "a tensor [4, 3] from 1"),
    "negative": (state_dict(a=tensor(offset=-1)), "with other arguments"),
    "boolean": (state_dict(a=tensor(content=storage(count=12), hooks=b"\x89")), "with other arguments"),
    "storage": (state_dict(a=tensor(content=number(1))), "with other arguments"),
    "no storage": (state_dict(a=tensor(content=group(text("x")) + b"Q")), "a persistent id a tuple"),
    "storage class": (state_dict(a=tensor(content=storage(kind=ORDERED))), "a persistent id"),
    "call of a text": (state_dict(a=text("x") + b")R"), "a call of a str"),
    "call of a class": (state_dict(a=FLOATS + b")R"), "a call of torch.FloatStorage"),
    "items of a text": (b"\x80\x02" + text("x") * 3 + b"s.", "items of a str"),
    "after the end": (state_dict(a=tensor()) + b"x", "1 bytes after its end"),
    "no end": (state_dict(a=tensor())[:-1], "damaged"), "empty": (b"", "damaged"),
    "empty stack": (b"\x80\x02R.", "damaged"), "mark": (b"\x80\x02t.", "damaged"),
    "memo": (b"\x80\x02h\x07.", "damaged"), "two values": (b"\x80\x02}}.", "damaged"),
    "odd items": (b"\x80\x02}(" + text("a") + b"u.", "damaged"), "unknown opcode": (b"\x80\x02\xff.", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("fault", HOSTILE)
def test_other_than_plain_state_dicts_are_refused_by_name(tmp_path: Path, fault: str) -> None:
    data, message = HOSTILE[fault]
    result = refused(write(tmp_path / "x.bin", data))
    assert f"data.pkl: {message}" in result or message in result, result
    assert "Only plain state dicts are read" in result


GOOD = state_dict(a=tensor())
DATA = {"m/data/0": NUMBERS.tobytes()}


def test_faults_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    assert "no entry data/0" in refused(write(path, GOOD, {}))
    assert "expected 12 numbers of 4 bytes, found 47 bytes" in refused(write(path, GOOD, {"m/data/0": bytes(47)}))
    assert "byteorder: expected b'little', found b'big'" in refused(write(path, GOOD, DATA | {"m/byteorder": b"big"}))
    assert "expected one entry NAME/data.pkl, found 2" in refused(write(path, GOOD, DATA | {"n/data.pkl": GOOD}))
    assert "expected an entry without compression" in refused(write(path, GOOD, compression=zipfile.ZIP_DEFLATED))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("m/data.pkl", GOOD)
    assert "several entries with one name" in refused(path)
    long = write(path, bytes(MAX_DIRECTORY_BYTES + 1), {})
    assert f"m/data.pkl: {MAX_DIRECTORY_BYTES + 1} bytes, above the limit" in refused(long)
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    assert "not a zip archive of torch: File is not a zip file" in refused(path)
    assert "no regular file" in refused(tmp_path)


def test_a_local_header_in_another_place(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", GOOD)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"m/data/0", b"m/data/1", 1))
    assert "'m/data/0': expected its local header" in refused(path)


@pytest.mark.each_value
@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_are_refused_or_read(tmp_path: Path, seed: int) -> None:
    """Changed and missing bytes give a `CheckpointError`, or arrays of the described size."""
    rng, content, path = random.Random(seed), ORIGINAL.read_bytes(), tmp_path / "x.bin"
    with zipfile.ZipFile(ORIGINAL) as archive:
        entry = next(entry for entry in archive.infolist() if entry.filename.endswith("data.pkl"))
    end, outcomes = entry.header_offset + entry.file_size, set()
    for _ in range(60):
        damaged = bytearray(content)
        # The description in front, the archive's table after, or a shorter file.
        low, high = rng.choice([(0, end), (len(content) - 2500, len(content))])
        for _ in range(rng.choice((1, 1, 3))):
            damaged[rng.randrange(low, high)] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.1 else damaged)
        try:
            file = open_torch(path)
            for key in file.tensors:
                file.read(key)
            outcomes.add("read")
        except CheckpointError:
            outcomes.add("refused")
    assert "refused" in outcomes
