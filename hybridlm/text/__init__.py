"""Text: tokenizer, chat template, and the text of a token stream as it grows up to a stop string.

Imports `gguf_files`, `files` and `errors`. Begin with `tokenizer`.
"""
