"""Shares of a model: which part of which dimension a device has.

Imports nothing of models. Begin with `cut` and `share`.
"""
