"""Compilation of a step, from trace to audit, with its certificate.

Imports everything in ir_passes but `host` and `sanitizer`. Begin with `stages`; `stored` keeps compiled steps on disk.
"""
