"""Pools of rows without a model."""

from typing import Any

import numpy as np

from hybridlm.rows.pool import RowPool
from hybridlm.steps.structure import Rows

BLOCKS = 2
"""Most pages of a row."""


def row_pool(size: int, devices: int = 1, pages: int | None = None, blocks: int = BLOCKS) -> RowPool:
    """Return a pool of rows without states; by default every row can have all its pages, with 0 none has any.

    Args:
        blocks: most pages of a row.
    """
    token: Any = np.zeros((size, 1), np.int32)
    pages = devices + size * blocks if pages is None else pages
    return RowPool(Rows((), token), pages, blocks if pages else 0, devices)
