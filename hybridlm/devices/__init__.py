"""Devices: the machine, meshes and their axes, and where each array of a step lies.

Imports `checkpoint` for the shards of parameters. Begin with `placement`.
"""
