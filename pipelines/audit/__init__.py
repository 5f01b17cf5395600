"""Is speculation lossless: an engine's, judged from samples."""
