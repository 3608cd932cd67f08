"""Compiled programs: one for each step and shape, certified on first use, and their calls.

Imports steps, rows, requests, devices, tuning and processes. Begin with `programs`; `shapes` are the compilation keys.
"""
