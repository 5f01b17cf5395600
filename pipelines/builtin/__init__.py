"""The built-in pair: a corpus on every Python installation, and two language models trained on it from scratch."""
