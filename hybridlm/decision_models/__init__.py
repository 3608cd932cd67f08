"""Typed questions about a state: one read of the prompt gives each option a probability.

Begin with `decide`.
"""
