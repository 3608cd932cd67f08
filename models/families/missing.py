"""Known families that are refused, with the missing parts.

Sources: transformers 5.24, and the model files of vLLM and SGLang (2026-11).
"""

from collections.abc import Mapping

MISSING: Mapping[str, str] = {
    "gigachat3_5": "norms with a learned gate (norm_type ZeroCenteredGatedNorm), latent attention with scaled norms "
    "and a gate of each output, and a bounded SwiGLU (swiglu_limit)",
    "alice_ai": "attention over the outputs of earlier blocks in place of residuals (Block Attention Residuals)",
    "glm5_next": "attention over indexed positions and several residual streams (mHC)",
    "inkling": "short convolutions inside attention, relative biases and block attention residuals",
    "zaya": "convolutions over compressed keys and values (CCA)",
    "recurrent_gemma": "the recurrence RG-LRU",
}
"""`model_type` -> missing parts."""
CLASSES: Mapping[str, str] = {"GigaChat35": "gigachat3_5", "AliceAI": "alice_ai"}
"""Beginning of a class -> `model_type`, for files without a known one."""


def missing_parts(model_type: object, classes: list[object]) -> str:
    """Return a clause with the missing parts of a known family, or ""."""
    names = [str(model_type).removesuffix("_text")]
    names += [name for stem, name in CLASSES.items() if any(str(each).startswith(stem) for each in classes)]
    return next((f", which needs {MISSING[name]}; this is not implemented" for name in names if name in MISSING), "")
