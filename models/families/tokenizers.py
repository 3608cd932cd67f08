"""The tokenizer of each family's checkpoints: its class in transformers, and the families that have tiktoken.model."""

PLAIN = "TokenizersBackend"
"""The class that uses tokenizer.json as it is."""
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
}
"""`model_type` -> class that transformers has for it; the other families have none of their own."""
CORRECTED = ("jamba", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text")
"""Model types whose files name a wrong class: the registered one is used."""
TIKTOKEN = ("kimi_linear",)
"""Model types whose checkpoints have tiktoken.model, with a Python file, in the place of tokenizer.json."""
