"""Rules that stop drafting, on the clock: every controller of chains and of forks beside the best static setting."""
