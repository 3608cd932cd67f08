"""Text: tokenizer, chat template, and incremental text with stop strings."""
