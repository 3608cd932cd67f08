"""Devices: the machine, meshes and their axes, and the placement of a step's arrays."""
