"""Measurements of dependence: operands are changed, and bits are compared. Begin with `dependence`."""
