"""Five hundred damaged quantised files are refused by name or give the right numbers.

The files are those of tests/golden_quantised, which the formats' own libraries wrote. If a number is changed to
another one, no file can show it: then at most one parameter differs.
"""

import shutil
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import Stored, write_tensors

from hybridlm.checkpoint import CheckpointError, load_parameters, open_model, open_safetensors
from models import ConfigError

GOLDEN = Path(__file__).resolve().parents[2] / "golden_quantised"
FILES = 44
"""Damaged files of each scheme."""
DAMAGE = ("missing", "cut", "dtype", "transposed", "leftover", "nan", "swapped", "halves")
WIDTHS = {1: ["U8", "I8", "F8_E4M3", "F8_E8M0"], 2: ["BF16", "F16"], 4: ["F32", "I32"], 8: ["I32"]}
SUFFIXES = ["_scale", "_scale_inv", "_scale_2", "_packed", "_zero_point"]


def arrays_of(source: Path) -> dict[Any, np.ndarray]:
    return {path: np.asarray(array) for path, array in load_parameters(open_model(source), "float32").arrays.items()}


def damaged(tensors: Mapping[str, Stored], kind: str, rng: np.random.Generator) -> tuple[dict[str, Stored], str]:
    """Return tensors with one damaged or two swapped, and the name of one."""
    changed = dict(tensors)
    name = str(rng.choice([t for t in tensors if not t.endswith(("norm.weight", "norm_f.weight", ".bias"))]))
    dtype, array = changed[name]
    if kind == "missing":
        del changed[name]
    elif kind == "cut":
        changed[name] = (dtype, array[..., : max(array.shape[-1] // 2, 1)] if array.ndim else array[None][:0])
    elif kind == "dtype":
        changed[name] = (str(rng.choice([width for width in WIDTHS[array.itemsize] if width != dtype])), array)
    elif kind == "transposed":
        changed[name] = (dtype, np.ascontiguousarray(array.T))
    elif kind == "leftover":
        changed[name + str(rng.choice(SUFFIXES))] = (dtype, array)
    elif kind == "nan":
        pattern = {1: 0x7F, 2: 0x7FC0, 4: 0x7FC00000, 8: 2**40}[array.itemsize]
        broken = np.array(array).view(f"u{array.itemsize}").copy()
        broken.reshape(-1)[rng.integers(broken.size)] = pattern
        changed[name] = (dtype, broken)
    elif kind == "swapped":
        stem = name.rpartition(".")[0]
        other = str(rng.choice([tensor for tensor in tensors if tensor != name and tensor.startswith(stem)] or [name]))
        changed[name], changed[other] = changed[other], changed[name]
    else:
        half = array.shape[0] // 2 if array.ndim else 0
        changed[name] = (dtype, np.concatenate([array[half:], array[:half]]) if half else array)
    return changed, name


def no_number(dtype: str, name: str) -> bool:
    """True if NaN makes the tensor's weight unreadable: a code or a used scale."""
    return dtype == "F8_E4M3" or ("scale" in name and "input" not in name and dtype in ("F16", "BF16", "F32"))


SCHEMES = sorted(path.name for path in GOLDEN.iterdir() if not path.name.startswith("gguf"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_damaged_file_is_refused_or_gives_the_right_numbers(tmp_path: Path, scheme: str) -> None:
    source = sorted((GOLDEN / scheme).iterdir())[1]
    for file in source.glob("*.json"):
        shutil.copy(file, tmp_path)
    file = open_safetensors(source / "model.safetensors")
    tensors = {item: (info.dtype, file.read_stored(item).copy()) for item, info in file.tensors.items()}
    expected, rng, refused = arrays_of(source), np.random.default_rng(6), Counter[str]()
    for index in range(FILES):
        kind = DAMAGE[index % len(DAMAGE)]
        path = tmp_path / "model.safetensors"
        # A mapped file must not be rewritten in place.
        path.unlink(missing_ok=True)
        broken, name = damaged(tensors, kind, rng)
        write_tensors(path, broken, file.metadata)
        try:
            arrays = arrays_of(tmp_path)
        except CheckpointError as error:
            assert error.faults
            refused[kind] += 1
            continue
        different = [item for item, array in arrays.items() if not np.array_equal(array, expected[item])]
        assert len(different) <= (2 if kind == "swapped" else 1), (kind, name, different)
        assert kind != "nan" or not no_number(tensors[name][0], name), name
    assert refused["missing"] >= 4 and refused["cut"] >= 4 and refused.total() > FILES // 3, refused


def entry(content: bytes, name: str) -> tuple[int, int]:
    """Return the offset and number of a tensor's dimensions in a GGUF header."""
    text = name.encode()
    index = content.index(struct.pack("<Q", len(text)) + text) + 8 + len(text)
    return index + 4, struct.unpack_from("<I", content, index)[0]


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe", "lfm2"])
def test_a_damaged_gguf_file_is_refused_or_gives_the_right_numbers(tmp_path: Path, architecture: str) -> None:
    from hybridlm.gguf_files import read_header

    source = GOLDEN / "gguf-q8_0" / architecture / "model.gguf"
    content, tensors = source.read_bytes(), read_header(source).tensors
    names = [name for name, tensor in tensors.items() if tensor.dtype == "Q8_0"]
    expected, rng, refused = arrays_of(source), np.random.default_rng(7), Counter[str]()
    kinds = ("missing", "cut", "type", "shape", "nan", "swapped")
    for index in range(FILES // 2):
        kind, name = kinds[index % len(kinds)], str(rng.choice(names))
        broken, path = bytearray(content), tmp_path / f"{index}.gguf"
        i, dims = entry(content, name)
        if kind == "missing":
            broken[i - 5] = ord("X")
        elif kind == "cut":
            del broken[int(rng.integers(len(content) // 2, len(content))) :]
        elif kind == "type":
            struct.pack_into("<I", broken, i + 8 * dims, int(rng.integers(40)))
        elif kind == "shape":
            sizes = struct.unpack_from(f"<{dims}Q", content, i)
            struct.pack_into(f"<{dims}Q", broken, i, sizes[0] * 2, *sizes[1:])
        elif kind == "nan":
            half = 34 * int(rng.integers((tensors[name].end - tensors[name].begin) // 34))
            struct.pack_into("<H", broken, tensors[name].begin + half, 0x7E00)
        else:
            other, extra = entry(content, str(rng.choice([item for item in names if item != name])))
            first, second = (
                content[i + 8 * dims : i + 8 * dims + 12],
                content[other + 8 * extra : other + 8 * extra + 12],
            )
            broken[i + 8 * dims : i + 8 * dims + 12], broken[other + 8 * extra : other + 8 * extra + 12] = second, first
        path.write_bytes(broken)
        try:
            arrays = arrays_of(path)
        except (CheckpointError, ConfigError) as error:
            assert error.faults
            refused[kind] += 1
            continue
        different = [item for item, array in arrays.items() if not np.array_equal(array, expected[item])]
        assert len(different) <= (2 if kind == "swapped" else 1), (kind, different)
    assert refused["missing"] == refused["cut"] == 4 and refused["nan"] == 3 and refused["shape"] == 4, refused
