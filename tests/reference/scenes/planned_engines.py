"""Engines without weights: their steps are traced, proved, planned and compiled, and do not run."""

from pathlib import Path
from typing import Any

from text_checkpoint import GOLDEN

from hybridlm.devices.mesh import abstract_mesh
from hybridlm.engine.abstract import SERVING, abstract_engine
from hybridlm.engine.config import EngineConfig
from hybridlm.engine.engine import Engine


def planned_engine(config: str | Path, **options: Any) -> Engine:
    """Return the engine of a golden checkpoint, by its name, or of a config.json.

    Args:
        options: as for `load`, without any those of a server; a `mesh` of sizes has devices that need not exist.
    """
    if isinstance(options.get("mesh"), dict):
        options["mesh"] = abstract_mesh(**options["mesh"])
    path = GOLDEN.parent / config / "config.json" if isinstance(config, str) else config
    return abstract_engine(path, EngineConfig(**options) if options else SERVING)
