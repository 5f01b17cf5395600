"""How many documents are enough to learn from, and which of what traces store: fits with less of either."""
