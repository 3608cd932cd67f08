"""Tokenizers of each family's checkpoints: classes of transformers, and tiktoken.model."""

PLAIN = "TokenizersBackend"
"""The class for an unchanged tokenizer.json."""
REGISTERED = {
    "falcon_mamba": "GPTNeoXTokenizer",
    "granitemoehybrid": PLAIN,
    "jamba": PLAIN,
    "kimi_linear": PLAIN,
    "mamba": "GPTNeoXTokenizer",
    "mamba2": "GPTNeoXTokenizer",
    "olmo_hybrid": PLAIN,
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "qwen3_5_text": "Qwen3_5Tokenizer",
    "qwen3_next": "Qwen2Tokenizer",
    "qwen4_exp": "Qwen3_5Tokenizer",
}
"""`model_type` -> transformers' registered class, if any."""
CORRECTED = ("jamba", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp")
"""Model types with a wrong class in files."""
TIKTOKEN = ("kimi_linear",)
"""Model types with tiktoken.model and a Python file."""
