"""Scoring: log-probabilities of texts that exist, multiple choice and perplexity.

Imports the engine, programs, requests, rows and text. Begin with `scorer`; `queue` orders texts so that common
prefixes are prefilled once.
"""
