"""Mamba and Mamba2 layers in config.json and in checkpoints, and the families Mamba and Falcon-Mamba."""
