"""The delayed-tree selectors at work: timed decodes beside the best static trees, and checks of the labels they learned from."""
