"""Quantised parameters that stay packed in memory: which can, and their arrays on one device or over a mesh.

A part of `checkpoint`, and imported by it. Begin with `parameters`.
"""
