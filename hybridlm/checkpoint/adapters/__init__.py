"""LoRA adapters of PEFT: opened, matched with a model, merged.

A part of `checkpoint`, and imported by it. Imports its `safetensors`. Begin with `adapter`.
"""

from hybridlm.checkpoint.adapters.adapter import (
    DECISION,
    JUDGE,
    Adapter,
    BoundAdapter,
    adapter_folder,
    base_of,
    has_adapter,
    open_adapter,
    own_adapter,
)
from hybridlm.checkpoint.adapters.match import bind
