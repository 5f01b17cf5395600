"""The comparison of verification rules without a clock: matched roots, per-node acceptance."""
