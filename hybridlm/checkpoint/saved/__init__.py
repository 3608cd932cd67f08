"""Models of `LM.save`: index of the directory, writer and reader."""
