"""Families with linear attention, and their common parts: Kimi-Linear, Ling and MiniMax."""
