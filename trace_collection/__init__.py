"""Runs the real decoder over prompts and writes what controllers learn from."""
