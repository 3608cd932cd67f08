"""Strict readers of config.json, with every fault of a file in one error.

Imports `decoder` and `layers`, for their settings. Begin with `reader`.
"""
