"""Compiled programs: one for each step and shape, certified on first use.

Begin with `programs`, then `runner`, the seam at which all steps run.
"""
