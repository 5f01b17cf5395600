"""Fitting models that stop drafting."""
