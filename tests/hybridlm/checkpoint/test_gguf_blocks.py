"""Numbers of GGUF files' blocks, and their stored weights."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_checkpoint import OF, golden, write_gguf

from hybridlm.checkpoint import CheckpointDirectory, open_checkpoint
from hybridlm.checkpoint.gguf_file import GgufFile
from hybridlm.checkpoint.stored_weights import stored_weights
from hybridlm.gguf_files import BLOCK_TYPES, GgufHeader, NamedTensor
from hybridlm.quantised import TensorInfo


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES))
def test_numbers_of_every_kind_of_block(tmp_path: Path, kind: str) -> None:
    block, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (300, 2 * size), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, Type[kind])
        raw = raw[np.isfinite(expected).all(axis=1)]
        expected = gguf.quants.dequantize(raw, Type[kind])
    assert len(raw) > 20
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before" + raw.tobytes())
    stored = TensorInfo(kind, (len(raw), 2 * block), 6, 6 + raw.nbytes)
    named = NamedTensor("t", stored, stored.shape, stored.begin, stored.end)
    file = GgufFile(GgufHeader(path, {}, {}), {"t": named})
    np.testing.assert_array_equal(file.read("t"), expected)
    file.release("t")
    np.testing.assert_array_equal(file.read("t"), expected)


@pytest.mark.parametrize("architecture", OF)
def test_stored_weights_are_the_tensors(tmp_path: Path, architecture: str) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture, Type.Q8_0))
    assert isinstance(checkpoint, CheckpointDirectory)
    assert {weight.name for weight in stored_weights(checkpoint)} == set(golden(architecture)[1])
