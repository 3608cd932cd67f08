"""A name for the weights and the configuration of a checkpoint, made without reading all of it."""

import hashlib
import json

from hybridlm.checkpoint.directory import CheckpointDirectory

WINDOWS, WINDOW_BYTES = 16, 256
"""Of a tensor larger than all windows together, so many windows are read; a smaller one is read whole."""


def checkpoint_fingerprint(directory: CheckpointDirectory) -> str:
    """A SHA-256, in hexadecimal, of config.json and of every tensor's name, dtype, shape and sampled content.

    It does not depend on where the checkpoint lies, how it is cut into files, or how config.json is spaced and ordered.
    It tells apart other configurations, other sets of tensors, and weights that differ throughout, as those of another
    training run or a fine-tuned layer do. Of a tensor of more than 4 KiB it sees 16 windows of 256 bytes, evenly spread
    from its first byte to its last: weights that were changed between them alone are not told apart.
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
