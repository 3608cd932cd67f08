"""Families with linear attention, and what they have in common: Kimi-Linear, Ling and MiniMax."""
