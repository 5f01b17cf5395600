"""EAGLE-3 drafters: one layer that reads hidden states of its target."""
