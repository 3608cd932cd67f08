"""Typed questions about a state: one read of the prompt gives each option a probability.

Imports scoring, which reads the residual stream, requests, text, checkpoint and files. Begin with `decide`; `settings`
has the files of a decision model, `heads` the scores of options.
"""
