"""Fitting the controller ``survival``."""
