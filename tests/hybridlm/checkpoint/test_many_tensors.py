"""Loading very many tensors: the work per tensor does not depend on their number."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_tensors import load, write_many

from hybridlm.checkpoint import ArrayFile

FILES = 3


def calls(folder: Path, packed: bool) -> int:
    """Return the number of Python and C functions that loading calls."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        load(folder, packed=packed)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[(1, 8), (4, 8), (12, 8)], [(1, 8), (1, 32), (1, 96)]], ids=["layers", "experts"])
@pytest.mark.parametrize("packed", [True, False])
def test_work_grows_with_the_number_of_tensors_and_not_faster(
    tmp_path: Path, sizes: list[tuple[int, int]], packed: bool
) -> None:
    """The list of modules that the configuration leaves unquantised grows with the layers."""
    results = []
    for layers, experts in sizes:
        folder = tmp_path / f"{layers} {experts}"
        count = write_many(folder, layers, experts, FILES)
        load(folder, packed=packed)  # the first model of these shapes makes more calls
        results.append((count, calls(folder, packed)))
    (small, smallest), (options, between), (largest, all_calls) = results
    early, late = (between - smallest) / (options - small), (all_calls - between) / (largest - options)
    assert late < 1.02 * early, f"{early:.1f} calls for each tensor of the first, {late:.1f} of the last"


def test_each_file_is_opened_once_and_each_tensor_read_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    count = write_many(tmp_path / "model", 2, 16, FILES)
    opened, read = Counter[str](), dict[str, tuple[str, int]]()
    open_file, read_stored = ArrayFile.__init__, ArrayFile.read_stored

    def counted_open(self: ArrayFile, path: Path, *header: Any) -> None:
        opened[str(path)] += 1
        open_file(self, path, *header)

    def counted_read(self: ArrayFile, name: str) -> np.ndarray:
        assert name not in read, f"{name} is read twice"
        read[name] = (str(self.path), self.tensors[name].begin)
        return read_stored(self, name)

    monkeypatch.setattr(ArrayFile, "__init__", counted_open)
    monkeypatch.setattr(ArrayFile, "read_stored", counted_read)
    load(tmp_path / "model")
    assert len(opened) == FILES and set(opened.values()) == {1}
    unused = 2 * 16 * 3  # scales of activations
    assert len(read) == count - unused and not any(name.endswith("input_scale") for name in read)
    # The experts of a layer are one parameter, and files hold them by name: expert 10 before expert 2.
    down = re.compile(r"model\.layers\.0\.mlp\.experts\.\d+\.down_proj\.weight")
    places = [place for name, place in read.items() if down.fullmatch(name)]
    assert len(places) == 16 and places == sorted(places)
