"""Checks of the delayed-tree selectors beside the measurement: of the labels they learned from, and what steps were priced at."""
