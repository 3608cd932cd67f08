"""LoRA adapters of PEFT: opened, matched with a model, merged."""

from hybridlm.checkpoint.adapters.adapter import (
    DECISION,
    JUDGE,
    Adapter,
    BoundAdapter,
    adapter_folder,
    base_of,
    build_merged,
    has_adapter,
    open_adapter,
    own_adapter,
)
from hybridlm.checkpoint.adapters.match import bind
