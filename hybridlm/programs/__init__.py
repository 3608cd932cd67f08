"""Compiled programs: one for each step and shape, certified on first use, and their calls.

Begin with `programs`, then `runner`, the seam at which all steps run.
"""
