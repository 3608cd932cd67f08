"""Typed questions about a state: one read of the prompt gives each option a probability.

Begin with `decide`; `settings` has the files of a decision model, `heads` the scores of options.
"""
