"""LFM2, LFM2-MoE and LFM3: gated short convolutions and attention layers."""
