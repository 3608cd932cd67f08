"""Compare `LM.score` and `LM.forward` for one family, with XLA's programs for users.

    python tests/reference/scenes/parity.py NAME DTYPE DIRECTORY [gradient] [DATAxMODELxEXPERT]

prints one line of JSON. With three numbers the model is on a mesh of these sizes.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from random_checkpoint import FAMILIES, write_random_checkpoint

import hybridlm

CHUNK, TOKENS, LANES = 16, 41, 3


def different(first: Any, two: Any) -> int:
    """Return how many numbers of two arrays are not the same, bit for bit."""
    a, b = np.asarray(first, np.float32), np.asarray(two, np.float32)
    assert a.shape == b.shape and a.size
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())


def compared(name: str, dtype: str, directory: Path, gradient: bool, mesh: Any) -> dict[str, Any]:
    """Return differences by name, and the difference between two chunk sizes."""
    write_random_checkpoint(name, directory, **FAMILIES[name])
    # There are three texts, so that one of four lanes is padding.
    lm = hybridlm.load(directory, lanes=4, context=256, chunk=CHUNK, dtype=dtype, mesh=mesh)
    ids = np.random.default_rng(0).integers(0, 64, (LANES, TOKENS))
    scores = np.array([score.logprobs[1:] for score in lm.score(ids.tolist())])
    out = lm.forward(ids)
    turned = np.array([score.logprobs[1:] for score in lm.score(ids[::-1].tolist())])
    companions = np.where(np.arange(LANES)[:, None] == 1, ids, 5)
    first = lm.forward(ids[:, : 2 * CHUNK], return_states=True)
    rest = lm.forward(ids[:, 2 * CHUNK :], state=first.states)
    several = lm.forward(np.concatenate([ids, ids, ids]))
    differences: dict[str, Any] = {
        "score and forward": different(scores, out.logprobs),
        "score in another lane": different(scores, turned[::-1]),
        "forward in another lane": different(out.logprobs, lm.forward(ids[::-1]).logprobs[::-1]),
        "beside other texts": different(out.logprobs[1], lm.forward(companions).logprobs[1]),
        "continued from a state": different(out.logprobs[:, 2 * CHUNK :], rest.logprobs),
        "in groups of lanes": sum(different(out.logprobs, several.logprobs[i : i + LANES]) for i in (0, 3, 6)),
        "without logits": different(out.logprobs, lm.forward(ids, logits=False).logprobs),
        "embeddings": different(out.logprobs, lm.forward(ids, embeddings=out.hidden_states[0]).logprobs),
    }
    if gradient:

        def loss(params: Any) -> Any:
            logprobs = lm.forward(ids, params=params, logits=False).logprobs
            return logprobs.sum(), logprobs

        (_, inner_scores), _ = jax.jit(jax.value_and_grad(loss, has_aux=True))(lm.params)
        differences["inside a gradient"] = different(scores, inner_scores)
    other = np.asarray(lm.forward(ids, chunk=CHUNK // 2).logprobs)
    return {"different": differences, "another chunk": float(np.abs(other - scores).max())}


if __name__ == "__main__":
    axes = [hybridlm.mesh(*map(int, axis_sizes.split("x"))) for axis_sizes in sys.argv[4:] if "x" in axis_sizes]
    options = "gradient" in sys.argv[4:], axes[0] if axes else None
    print(json.dumps(compared(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *options)))
