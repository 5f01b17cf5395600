"""The general path: Hugging Face's own forward over a cache with scratch rows. The reference for the compact forward."""
