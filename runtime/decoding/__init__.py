"""Decoding loops: one file per way of interleaving draft and target."""
