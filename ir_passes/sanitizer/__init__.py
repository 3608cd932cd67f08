"""Sanitizer: runs a traced step with shadow labels of each row's owner.

Imports `contract`, `host` and `jaxpr`. Begin with `sanitize`.
"""
