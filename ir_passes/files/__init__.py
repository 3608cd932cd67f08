"""Files: strict JSON, records of dataclasses, atomic writes, and a directory of files by key.

Imports nothing of ours; hybridlm builds on it too. Begin with `store`.
"""
