"""Five hundred damaged quantised files: each is refused by name, or gives the right numbers.

The files are those of tests/golden_quantised, which the formats' own libraries wrote. A number that was changed to
another one is another model that no file can tell: at most the one parameter that it belongs to differs then.
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

from hybridlm.checkpoint import CheckpointError, SafetensorsFile, load_parameters
from hybridlm.checkpoint.model import open_model
from models import ConfigError

GOLDEN = Path(__file__).resolve().parents[2] / "golden_quantised"
FILES = 44
"""Damaged files of each scheme."""
DAMAGE = ("missing", "cut", "dtype", "transposed", "leftover", "nan", "swapped", "halves")
WIDTHS = {1: ["U8", "I8", "F8_E4M3", "F8_E8M0"], 2: ["BF16", "F16"], 4: ["F32", "I32"], 8: ["I32"]}
SUFFIXES = ["_scale", "_scale_inv", "_scale_2", "_packed", "_zero_point"]


def arrays_of(source: Path) -> dict[Any, np.ndarray]:
    return {path: np.asarray(one) for path, one in load_parameters(open_model(source), "float32").arrays.items()}


def damaged(tensors: Mapping[str, Stored], kind: str, rng: np.random.Generator) -> tuple[dict[str, Stored], str]:
    """Return tensors of which one is damaged, or two are stored under each other's names, and the name of one."""
    changed = dict(tensors)
    name = str(rng.choice([one for one in tensors if not one.endswith(("norm.weight", "norm_f.weight", ".bias"))]))
    dtype, array = changed[name]
    if kind == "missing":
        del changed[name]
    elif kind == "cut":
        changed[name] = (dtype, array[..., : max(array.shape[-1] // 2, 1)] if array.ndim else array[None][:0])
    elif kind == "dtype":
        changed[name] = (str(rng.choice([one for one in WIDTHS[array.itemsize] if one != dtype])), array)
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
        other = str(rng.choice([one for one in tensors if one != name and one.startswith(stem)] or [name]))
        changed[name], changed[other] = changed[other], changed[name]
    else:
        half = array.shape[0] // 2 if array.ndim else 0
        changed[name] = (dtype, np.concatenate([array[half:], array[:half]]) if half else array)
    return changed, name


def no_number(dtype: str, name: str) -> bool:
    """Whether a NaN among the numbers of a tensor makes its weight unreadable: a code, or a scale that is used."""
    return dtype == "F8_E4M3" or ("scale" in name and "input" not in name and dtype in ("F16", "BF16", "F32"))


SCHEMES = sorted(one.name for one in GOLDEN.iterdir() if not one.name.startswith("gguf"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_damaged_file_is_refused_or_gives_the_right_numbers(tmp_path: Path, scheme: str) -> None:
    source = sorted((GOLDEN / scheme).iterdir())[1]
    for file in source.glob("*.json"):
        shutil.copy(file, tmp_path)
    file = SafetensorsFile(source / "model.safetensors")
    tensors = {one: (info.dtype, file.read_stored(one).copy()) for one, info in file.tensors.items()}
    expected, rng, refused = arrays_of(source), np.random.default_rng(6), Counter[str]()
    for index in range(FILES):
        kind = DAMAGE[index % len(DAMAGE)]
        path = tmp_path / "model.safetensors"
        # A mapped file must not be rewritten in place.
        path.unlink(missing_ok=True)
        broken, name = damaged(tensors, kind, rng)
        write_tensors(path, broken, file.metadata)
        try:
            found = arrays_of(tmp_path)
        except CheckpointError as error:
            assert error.faults
            refused[kind] += 1
            continue
        different = [one for one, array in found.items() if not np.array_equal(array, expected[one])]
        assert len(different) <= (2 if kind == "swapped" else 1), (kind, name, different)
        assert kind != "nan" or not no_number(tensors[name][0], name), name
    assert refused["missing"] >= 4 and refused["cut"] >= 4 and refused.total() > FILES // 3, refused


def entry(content: bytes, name: str) -> tuple[int, int]:
    """Return where a tensor's dimensions begin in the header of a GGUF file, and their number."""
    text = name.encode()
    at = content.index(struct.pack("<Q", len(text)) + text) + 8 + len(text)
    return at + 4, struct.unpack_from("<I", content, at)[0]


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
        at, dims = entry(content, name)
        if kind == "missing":
            broken[at - 5] = ord("X")
        elif kind == "cut":
            del broken[int(rng.integers(len(content) // 2, len(content))) :]
        elif kind == "type":
            struct.pack_into("<I", broken, at + 8 * dims, int(rng.integers(40)))
        elif kind == "shape":
            sizes = struct.unpack_from(f"<{dims}Q", content, at)
            struct.pack_into(f"<{dims}Q", broken, at, sizes[0] * 2, *sizes[1:])
        elif kind == "nan":
            half = 34 * int(rng.integers((tensors[name].end - tensors[name].begin) // 34))
            struct.pack_into("<H", broken, tensors[name].begin + half, 0x7E00)
        else:
            other, more = entry(content, str(rng.choice([one for one in names if one != name])))
            first, second = (
                content[at + 8 * dims : at + 8 * dims + 12],
                content[other + 8 * more : other + 8 * more + 12],
            )
            broken[at + 8 * dims : at + 8 * dims + 12], broken[other + 8 * more : other + 8 * more + 12] = second, first
        path.write_bytes(broken)
        try:
            found = arrays_of(path)
        except (CheckpointError, ConfigError) as error:
            assert error.faults
            refused[kind] += 1
            continue
        different = [one for one, array in found.items() if not np.array_equal(array, expected[one])]
        assert len(different) <= (2 if kind == "swapped" else 1), (kind, different)
    assert refused["missing"] == refused["cut"] == 4 and refused["nan"] == 3 and refused["shape"] == 4, refused
