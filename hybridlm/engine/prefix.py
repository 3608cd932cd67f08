"""Prefixes: a common prefix that is prefilled once and continued many times."""

import os
from dataclasses import dataclass
from pathlib import Path

from hybridlm.engine.snapshot_file import save_snapshot
from hybridlm.rows.snapshot import Snapshot
from ir_passes.host.slot_owner import OneHolder


@dataclass(frozen=True, eq=False)
class Prefix(OneHolder):
    """A prefix of prompts or texts, prefilled once; `LM.prefix` makes it.

    Its state ends before the last token: each continuation consumes that token, to predict the next one.

    Attributes:
        token_ids: tokens of the prefix, at least one.
        snapshot: the state after all of them but the last.
    """

    _instead = "write it with save and read it with lm.load_prefix"
    token_ids: tuple[int, ...]
    snapshot: Snapshot

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Prefix({len(self)} tokens, {self.nbytes / 1e6:.1f} MB)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a safetensors file for `LM.load_prefix`.

        Raises:
            OSError, ValueError: the file cannot be written; an older one is unchanged.
        """
        save_snapshot(Path(path), self.token_ids, self.snapshot)

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device, freed with the prefix."""
        return self.snapshot.nbytes
