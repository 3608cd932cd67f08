"""Rows of pools: sequence states on the device, holders, copies and cached buffers.

Begin with `pool`.
"""

from hybridlm.rows.cached_buffers import BufferSpan
