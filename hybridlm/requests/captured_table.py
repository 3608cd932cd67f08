"""Captured arrays of all sequences of a call in one Parquet file."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.errors import require_extra
from hybridlm.files.atomic import NO_ROOM, naming
from hybridlm.requests.captured import HIDDEN
from hybridlm.steps.edit import StateSite
from ir_passes.files.atomic import whole_file

TABLE = ".parquet"
MAX_GROUP_BYTES = 1 << 24
"""Size of the rows of a row group."""


class CaptureTable:
    """A Parquet file with a row per captured position, renamed once complete."""

    def __init__(self, path: Path, hidden_states: Sequence[int], hidden: int, states: Sequence[StateSite]):
        require_extra(f"capture_to={path.name}", "pyarrow", "data")
        import pyarrow as pa

        self._path, self._rows, self._bytes = path, list[tuple[int, int, dict[str, np.ndarray]]](), 0
        tensors = {HIDDEN.format(i): pa.fixed_shape_tensor(pa.float32(), (hidden,)) for i in hidden_states}
        # float32 has every number of floats that Arrow or its readers lack.
        tensors |= {site.name: pa.fixed_shape_tensor(pa.float32(), site.shape, dim_names=site.dims) for site in states}
        self._schema = pa.schema([("index", pa.int32()), ("position", pa.int32()), *tensors.items()])
        self._file = ExitStack()  # whole or deleted at its end
        self._writer: Any = None  # a pyarrow.parquet.ParquetWriter

    def add(self, index: int, position: int, arrays: dict[str, np.ndarray]) -> None:
        """Append a row of float32 arrays by column; raises OSError."""
        self._rows.append((index, position, arrays))
        self._bytes += sum(array.nbytes for array in arrays.values())
        if self._bytes >= MAX_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        with naming(self._path, NO_ROOM):
            self._write_rows()

    def _write_rows(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            file = self._file.enter_context(whole_file(self._path))
            self._writer = pq.ParquetWriter(file, self._schema, use_dictionary=False)
        if not self._rows:
            return
        fields: list[Any] = [
            pa.array([index for index, _, _ in self._rows], pa.int32()),
            pa.array([position for _, position, _ in self._rows], pa.int32()),
        ]
        for field in list(self._schema)[len(fields) :]:
            values = np.stack([arrays[field.name].reshape(-1) for _, _, arrays in self._rows])
            flat = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
            fields.append(pa.ExtensionArray.from_storage(field.type, flat))
        self._writer.write_table(pa.table(fields, schema=self._schema))
        self._rows, self._bytes = [], 0

    def finish(self) -> None:
        """Write the remaining rows and rename the file."""
        self._write()
        with naming(self._path, NO_ROOM):
            self._writer.close()
            self._file.close()
        self._writer = None

    def close(self) -> None:
        if self._writer is not None:
            # Unwritable data is deleted all the same.
            with suppress(OSError), self._file:
                self._writer.close()
                raise InterruptedError(f"{self._path} is not whole")
            self._writer = None
