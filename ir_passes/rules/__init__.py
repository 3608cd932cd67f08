"""What each operation does to the ownership of elements: one rule for each of JAX's primitives."""
