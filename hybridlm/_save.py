"""Writing a loaded model: `LM.save`."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

import hybridlm
from hybridlm._engine import Engine
from hybridlm._replacing import new_path
from hybridlm.checkpoint import CheckpointError, fingerprint_of, open_checkpoint
from hybridlm.checkpoint.saving import Described, Piece, save_checkpoint
from models import Cut, Decoder, DecoderConfig


class Saved:
    """What `LM` inherits; it sets the attributes."""

    path: Path
    model: Decoder
    config: DecoderConfig
    params: dict[str, jax.Array]
    fingerprint: str
    _engine: Engine

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as it is in memory, so that `hybridlm.load(directory)` opens it, faster than the original.

        The directory holds the weights in the layout and the dtype in which they are used (an Orbax checkpoint of plain
        arrays), config.json, generation_config.json, the tokenizer's files and the chat template as they were, and an
        index: arrays and JSON only. What is loaded from it gives the same bits. See docs/saving.md.

        Args:
            directory: where it will be; nothing may be there.

        Raises:
            FileExistsError: something is there.
            CheckpointError: the checkpoint that was loaded is not there any more, or has changed.
            OSError: it cannot be written; nothing is left of it.
        """
        target = new_path(Path(directory))
        source = open_checkpoint(self.path)
        dtype = self._engine.kind.dtype
        if fingerprint_of(source, dtype) != self.fingerprint:
            raise CheckpointError(self.path, "has changed since it was loaded; config.json and tokenizer are its")
        cuts = {".".join(map(str, path)): each for path, each in self.model.cuts().items()}
        parameters = {
            name: (array.shape, list(_pieces(array, cuts.get(name, ())))) for name, array in self.params.items()
        }
        family = self.config.family
        model = Described(hybridlm.__version__, family, dtype, self.fingerprint)
        save_checkpoint(target, self.path, model, parameters)


def _pieces(array: jax.Array, cuts: Sequence[Cut]) -> Iterator[Piece]:
    """An array as pieces that are each one run in all dimensions that devices share, so that all can be cut anew."""
    runs = [[slice(0, size)] for size in array.shape]
    for cut in cuts:
        ends = list(itertools.accumulate(part.size for part in cut.parts))
        runs[cut.dim] = [slice(end - part.size, end) for part, end in zip(cut.parts, ends, strict=True)]
    windows = list(itertools.product(*runs))
    if len(windows) == 1:
        yield Piece((0,) * array.ndim, array)
        return
    host = np.asarray(array)
    for window in windows:
        yield Piece(tuple(one.start for one in window), host[window])
