"""The sanitizer: a traced step runs with shadow labels beside its pools, which say whose state each row holds.

Imports `contract`, `host` and `jaxpr`. Begin with `sanitize`; `interpreter` runs the equations, `verdict` reports.
"""
