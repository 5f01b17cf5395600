"""Fitting controllers that choose where a round's draft comes from."""
