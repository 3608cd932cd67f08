"""State arrays by their places in a model."""

from typing import Any

import jax

from hybridlm.requests.captured import parse_path


def states_by_place(layers: Any) -> dict[tuple[int, str], Any]:
    """Return the recurrent and convolution states of rows or of a sequence, by layer and array."""
    leaves = jax.tree_util.tree_leaves_with_path(layers)
    named = {parse_path(f"layers{jax.tree_util.keystr(path)}"): leaf for path, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if name is not None and name[1] in ("recurrent", "conv")}
