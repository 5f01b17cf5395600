"""Which delayed tree to draft: features at a root, the network, and the rule that turns its scores into a choice."""
