"""Kinds of codes that packed weights consist of."""

from typing import Literal

Codes = Literal["e4m3", "e2m1", "int8", "int4"]
"""float8 E4M3, float4 E2M1 (two in a byte), signed integers in a byte, unsigned ones of 4 bits (two in a byte)."""
TWO_IN_A_BYTE = ("e2m1", "int4")
