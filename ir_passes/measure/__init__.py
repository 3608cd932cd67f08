"""Measurements of dependence: operands are changed, and bits are compared.

Imports `contract` and `jaxpr`. Begin with `dependence`.
"""
