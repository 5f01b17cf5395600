"""Drafting ahead of the target: branches at the point where drafting stopped, grown while the target verifies."""
