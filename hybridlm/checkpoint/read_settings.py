"""Settings that parameters are read by, from checkpoints of all kinds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hybridlm.checkpoint.adapters import BoundAdapter
from hybridlm.checkpoint.packed.parameters import PackedParameters
from hybridlm.checkpoint.report import ParameterPath, Progress
from hybridlm.checkpoint.shards import Shards
from models import Weight


@dataclass(frozen=True)
class ReadSettings:
    """Arguments of `load_parameters` beside the checkpoint and its model."""

    dtype: str
    progress: Progress | None
    shards: Mapping[ParameterPath, Shards]
    adapters: Sequence[BoundAdapter]
    only: Collection[ParameterPath] | None
    packed: PackedParameters | None

    def reads(self, weight: Weight) -> bool:
        """Whether a parameter is read."""
        return self.only is None or weight.path in self.only

    def adapters_of(self, weight: Weight) -> list[BoundAdapter]:
        """Return the adapters that change a parameter."""
        return [adapter for adapter in self.adapters if adapter.touches(weight)]
