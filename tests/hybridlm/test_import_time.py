"""`import hybridlm` loads no optional library; each is imported on use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NEEDED_LATER = (
    "datasets huggingface_hub jinja2 lm_eval matplotlib orbax pandas pyarrow ray safetensors tokenizers torch "
    "transformers typer"
).split()
CHILD = """
import gc, json, sys
import hybridlm
print(json.dumps([gc.isenabled(), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.mark.slow
def test_libraries_for_some_users_are_not_imported(root: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(root)}
    run = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    collecting, modules = json.loads(run.stdout)
    assert collecting
    assert {"hybridlm", "ir_passes", "models", "jax"} <= set(modules)
    assert not set(NEEDED_LATER) & set(modules)
