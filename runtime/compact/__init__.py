"""The compact forward: one functional forward for Llama-shaped models, in few large operations over a preallocated cache."""
