"""OpenAI Batch files: requests and responses as JSON lines, in the same order.

Imports sessions, the engine, requests, grammars, tasks on files and text. Begin with `batch_task`.
"""
