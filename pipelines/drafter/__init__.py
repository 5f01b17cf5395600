"""EAGLE-3 drafters trained for a target: what it writes, its hidden states there, the network, and the run that trains it."""
