"""Compilation of a step: trace, prove, rewrite, prove again, plan, lower, compile, audit; the certificate.

Imports everything in ir_passes but `host` and `sanitizer`. Begin with `stages`; `stored` keeps compiled steps on disk.
"""
