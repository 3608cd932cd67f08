"""Memory for weights in huge pages: disjoint, taken over by XLA without a copy, released."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from hybridlm.checkpoint.cast import ALIGNMENT, BLOCK, PAGE, HugePages

ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: ([^\n]*)$", re.MULTILINE | re.DOTALL)
linux = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="huge pages of anonymous memory are Linux's"
)


def anonymous() -> int:
    """Bytes of this process's own memory."""
    match = ANONYMOUS.search(Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


def test_arrays_are_aligned_and_apart() -> None:
    """Threads allocate sizes around an alignment, a page and a block, with distinct numbers."""
    sizes = [0, 1, ALIGNMENT - 1, ALIGNMENT, 4097, PAGE - 1, PAGE + 1, BLOCK // 2, BLOCK + 3] * 2
    memory = HugePages()

    def filled(number: int) -> np.ndarray:
        array = memory.empty(sizes[number])
        array[:] = number
        return array

    with ThreadPoolExecutor(4) as threads:
        arrays = list(threads.map(filled, range(len(sizes))))
    for number, (size, array) in enumerate(zip(sizes, arrays, strict=True)):
        assert len(array) == size and (size == 0 or array.ctypes.data % ALIGNMENT == 0)
        assert (array == number).all(), f"array {number} of {size} bytes was written by another"


def test_an_array_outlives_its_neighbours() -> None:
    memory = HugePages()
    arrays = [memory.empty(3 * PAGE // 2) for _ in range(4)]
    for number, array in enumerate(arrays):
        array[:] = number + 1
    # XLA keeps a view, of another dtype and shape.
    saved = jax.device_put(arrays[2].view(np.float32).reshape(3, -1))
    assert saved.unsafe_buffer_pointer() == arrays[2].ctypes.data, "XLA copied it"
    del arrays, array
    assert (np.asarray(saved).view(np.uint8) == 3).all()


@linux
def test_memory_is_given_back_while_the_block_is_in_use() -> None:
    memory, size = HugePages(), BLOCK // 4
    saved, dropped = memory.empty(size + 100), memory.empty(2 * size)
    saved[:], dropped[:] = 1, 2
    initial = anonymous()
    del dropped
    assert initial - anonymous() > 2 * size - 2 * PAGE
    assert (saved == 1).all()


@linux
def test_pages_are_asked_to_be_huge() -> None:
    array = HugePages().empty(PAGE)
    flags = [
        flags.split()
        for first, end, flags in MAPPING.findall(Path("/proc/self/smaps").read_text())
        if int(first, 16) <= array.ctypes.data < int(end, 16)
    ]
    assert len(flags) == 1 and "hg" in flags[0]
