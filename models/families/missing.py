"""Known families that are refused, with the missing parts.

Sources: transformers 5.24, and the model files of vLLM and SGLang (2026-11).
"""

from collections.abc import Mapping

MISSING: Mapping[str, str] = {
    "glm5_next": "attention over indexed positions and several residual streams (mHC)",
    "inkling": "short convolutions inside attention, relative biases and block attention residuals",
    "zaya": "convolutions over compressed keys and values (CCA)",
    "recurrent_gemma": "the recurrence RG-LRU",
}
"""`model_type` -> missing parts."""


def missing_parts(model_type: object) -> str:
    """Return a clause with the missing parts of a known family, or ""."""
    parts = MISSING.get(str(model_type).removesuffix("_text"))
    return "" if parts is None else f", which needs {parts}; this is not implemented"
