"""OpenAI Batch files: requests and responses as JSON lines, in the same order.

Imports sessions, the engine, requests, grammars, score files and text. Begin with `batch_file`.
"""
