"""Speculative decoding without the engine: drafters, how far each is trusted, and what steps cost.

Imports nothing of hybridlm. Begin with `drafters`; `drafts` holds the drafts of one sequence.
"""
