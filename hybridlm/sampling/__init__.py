"""Sampling: the next token of every lane from its logits.

Imports nothing of hybridlm. Begin with `sampling`; `vocab_parallel` has a sharded vocabulary.
"""
