"""Drafters: how candidate tokens are proposed. Each drafted token keeps the law it was drawn from."""
