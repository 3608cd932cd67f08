"""Files: strict JSON, records of dataclasses, atomic writes, and a directory of files by key.

Imports nothing of this project; hybridlm uses it, too. Begin with `store`.
"""
