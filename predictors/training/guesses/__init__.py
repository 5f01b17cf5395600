"""How a model drafts for itself: recorded ways, priced, and the fastest chosen (family ``guess``)."""
