"""Quantised parameters in packed form, on one device or over a mesh.

A part of `checkpoint`, and imported by it. Begin with `parameters`.
"""
