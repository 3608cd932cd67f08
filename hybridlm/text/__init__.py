"""Text: tokenizer, chat template, and incremental text of a token stream with stop strings.

Imports `gguf_files`, `files` and `errors`. Begin with `tokenizer`.
"""
