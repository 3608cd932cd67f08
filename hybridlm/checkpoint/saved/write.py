"""Writer of saved models: an Orbax checkpoint, an index, and the original's small files."""

import errno
import gc
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from hybridlm.checkpoint.adapters.adapter import CONFIG as ADAPTER
from hybridlm.checkpoint.cast import DTYPES
from hybridlm.checkpoint.gguf_file import is_gguf
from hybridlm.checkpoint.hub import FILES
from hybridlm.checkpoint.saved.index import FORMAT, INDEX, WEIGHTS, checksum, digest, dump_index
from hybridlm.errors import CheckpointError
from hybridlm.files.atomic import NO_ROOM, naming, sync
from hybridlm.files.strict_json import MEGABYTE, read_object
from hybridlm.gguf_files import companions, read_header
from ir_passes.files.atomic import partial_path

# Not the adapter's file: it is merged.
SMALL_FILES = (  # heads of decision models among them
    *(name for name in FILES if "safetensors" not in name and name != ADAPTER),
    "head.safetensors",
    "readout.safetensors",
)


SavedPiece = tuple[tuple[int, ...], jax.Array | np.ndarray]
"""Index of the first element in the parameter, and the elements."""


def save_checkpoint(
    target: Path,
    source: Path,
    model: Mapping[str, str],
    parameters: Mapping[str, tuple[tuple[int, ...], Sequence[SavedPiece]]],
    packed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Write a checkpoint; its name appears when it is complete.

    Args:
        source: original directory or GGUF file, for small files.
        model: version (hybridlm), family, dtype and original fingerprint.
        parameters: shape, and pieces that cover it, by name.
        packed: "kind" and "inputs" by name; the arrays are in `parameters`, by role.

    Raises:
        OSError: nothing is left behind.
    """
    names = {
        name: [name] if len(pieces) == 1 else [f"{name}.{number}" for number in range(len(pieces))]
        for name, (_, pieces) in parameters.items()
    }
    arrays = {
        piece_name: array
        for name, (_, pieces) in parameters.items()
        for piece_name, (_, array) in zip(names[name], pieces, strict=True)
    }
    with new_directory(target) as directory:
        _require_room(target, sum(array.nbytes for array in arrays.values()))
        _write_arrays(directory / WEIGHTS, arrays)
        if jax.process_index() == 0:
            fields: dict[str, Any] = {"format": FORMAT, **model}
            fields["files"] = copy_small_files(source, directory)
            fields["parameters"] = {
                name: {
                    "dtype": str(np.dtype(pieces[0][1].dtype)),
                    "shape": list(shape),
                    "tiles": [
                        tile
                        for piece_name, (start, _) in zip(names[name], pieces, strict=True)
                        for tile in _tiles(directory, piece_name, start)
                    ],
                }
                for name, (shape, pieces) in parameters.items()
            }
            if packed:
                fields["packed"] = {name: dict(description) for name, description in packed.items()}
            (directory / INDEX).write_bytes(dump_index({**fields, "sha256": digest(dump_index(fields))}))


def copy_small_files(source: Path, directory: Path) -> dict[str, str]:
    """Write the small files of a checkpoint; return SHA-256 by name."""
    if is_gguf(source):
        contents = {name: text.encode() for name, text in companions(read_header(source)).items()}
    else:
        paths = (path for name in SMALL_FILES for path in source.glob(name) if path.is_file())
        contents = {path.relative_to(source).as_posix(): path.read_bytes() for path in sorted(paths)}
    for name, content in contents.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    return {name: digest(content) for name, content in contents.items()}


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Create a directory, named when it is complete and deleted after a failure.

    The first process creates, renames and deletes it; all wait for its name.
    """
    token = np.frombuffer(secrets.token_bytes(4), np.uint8)
    if jax.process_count() > 1:
        token = np.asarray(multihost_utils.broadcast_one_to_all(token))
    partial = partial_path(target, token.tobytes().hex())
    first = jax.process_index() == 0
    try:
        if first:
            partial.mkdir()
        _wait_for_all(f"{partial} is there")
        with naming(target, NO_ROOM):
            yield partial
        if first:
            for folder, _, names in os.walk(partial):
                for name in (*names, "."):
                    sync(Path(folder) / name)
            os.rename(partial, target)
            sync(target.parent)
        _wait_for_all(f"{target} is there")
    except BaseException:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _wait_for_all(event: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(event)


def _require_room(target: Path, size: int) -> None:
    """Raise OSError if parameters do not fit the disk, before minutes of writing.

    Processes would notice it at different moments and wait for each other.
    """
    free = shutil.disk_usage(target.parent).free
    if free < size and jax.process_count() == 1:
        fault = f"{os.strerror(errno.ENOSPC)}: parameters have {size:,} bytes, and {free:,} are free"
        raise OSError(errno.ENOSPC, fault, str(target))


def _write_arrays(folder: Path, arrays: Mapping[str, jax.Array | np.ndarray]) -> None:
    # This import takes as long as scoring a short file.
    import orbax.checkpoint as ocp

    # Uncompressed files can be mapped and read in part.
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False, use_compression=False)
    with _unlogged("absl", "asyncio"), _numbered_errors(), ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(dict(arrays)))


@contextmanager
def _numbered_errors() -> Iterator[None]:
    """Turn system errors in messages of TensorStore, Orbax's writer, into OSError."""
    code = None
    try:
        yield
    except ValueError as error:
        code = re.search(r"\[os_error_code='(\d+)'\]", str(error))
        if code is None:
            raise
    if code is not None:
        gc.collect()  # the tasks that failed, too
        raise OSError(int(code[1]), os.strerror(int(code[1])))


@contextmanager
def _unlogged(*names: str) -> Iterator[None]:
    """Silence Orbax: it warns that OCDBT is off, and prints errors."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)


def _tiles(directory: Path, name: str, start: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    folder = directory / WEIGHTS / name
    layout = read_object(folder / ".zarray", MEGABYTE)
    shape, chunks = layout["shape"], layout["chunks"]
    plain = (layout["compressor"], layout["filters"], layout["order"]) == (None, None, "C")
    if not plain or any(size % chunk for size, chunk in zip(shape, chunks, strict=True)):
        raise CheckpointError(folder, f"expected uncompressed chunks that divide the array, Orbax has written {layout}")
    dtype = DTYPES.get(layout["dtype"]) or np.dtype(layout["dtype"])
    for number in np.ndindex(*(size // chunk for size, chunk in zip(shape, chunks, strict=True))):
        file = folder / (".".join(map(str, number)) or "0")
        begin = [a + i * chunk for a, i, chunk in zip(start, number, chunks, strict=True)]
        content = np.memmap(file, dtype, "r")
        yield {
            "file": file.relative_to(directory).as_posix(),
            "at": begin,
            "shape": chunks,
            "checksum": checksum(content),
        }
