"""OpenAI Batch files: requests as JSON lines in, responses as JSON lines out in the same order.

Imports sessions, the engine, requests and text. Begin with `batch_file`.
"""
