"""Fingerprint of the weights and the configuration of a checkpoint, computed without reading all of it."""

import hashlib
import json

from hybridlm.checkpoint.directory import CheckpointDirectory

WINDOWS, WINDOW_BYTES = 16, 256
"""Windows that are read of a tensor, and their size. A tensor smaller than all of them together is read whole."""


def checkpoint_fingerprint(directory: CheckpointDirectory) -> str:
    """Return a SHA-256, in hexadecimal, of config.json and of every tensor's name, dtype, shape and sampled content.

    It does not depend on the path, on the shards, or on the spacing and key order of config.json. It differs for
    another configuration, another set of tensors, and weights that differ throughout, such as those of another
    training run or a fine-tuned layer. A tensor of more than 4 KiB is sampled: 16 windows of 256 bytes are read, evenly
    spread from the first byte to the last, and changes between the windows are not seen.
    """
    digest = hashlib.sha256(json.dumps(directory.config, sort_keys=True).encode())
    for name in sorted(directory.files):
        info = directory.info(name)
        digest.update(json.dumps([name, info.dtype, info.shape]).encode())
        size = info.end - info.begin
        if size <= WINDOWS * WINDOW_BYTES:
            starts, length = [0], size
        else:
            starts, length = [i * (size - WINDOW_BYTES) // (WINDOWS - 1) for i in range(WINDOWS)], WINDOW_BYTES
        for start in starts:
            digest.update(directory.files[name].read_bytes(name, start, length))
    return digest.hexdigest()
