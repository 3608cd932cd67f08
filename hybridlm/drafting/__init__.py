"""Speculative decoding without the engine: drafters, acceptance rates and step times.

Imports nothing of hybridlm. Begin with `drafters`.
"""
