"""Speculative decoding without the engine: drafters, acceptance rates and step times."""
