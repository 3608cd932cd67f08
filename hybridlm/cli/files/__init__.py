"""Commands that answer every row of a file: score, decide, classify, embed, divergence, batch."""
