"""Quantised parameters in packed form, on one device or over a mesh."""
