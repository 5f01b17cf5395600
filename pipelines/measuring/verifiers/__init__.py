"""The comparison of verification rules: matched roots, per-node acceptance, timed decodes."""
