"""The fastest decoder for a pair on this machine: candidates ranked by replay, the best of them compared on the clock."""
