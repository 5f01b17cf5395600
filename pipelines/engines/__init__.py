"""Engines as processes that answer blocks of prompts, in environments of their own."""
