"""Measurements of dependence: operands are changed, and bits are compared.

Imports `contract`. Begin with `dependence`.
"""
