"""Sampling: the next token of every lane from its logits, each lane by itself.

Imports nothing of hybridlm. Begin with `sampling`; `vocab_parallel` works on a vocabulary that is sharded over devices.
"""
