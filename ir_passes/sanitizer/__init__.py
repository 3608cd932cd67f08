"""The sanitizer: runs a traced step with shadow labels that record each row's owner.

Imports `contract`, `host` and `jaxpr`. Begin with `sanitize`; `interpreter` runs the equations, `verdict` reports.
"""
