"""Compiled programs: one for each step and shape, certified on first use, and their calls.

Imports steps, sampling, rows, requests, devices and processes. Begin with `programs`, then `runner`, the seam at which
all steps are run.
"""
