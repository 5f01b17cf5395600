"""Full grids that a user runs for their own pair when they want them: bounded, resumable, outside the main pipeline."""
