"""Methods without a draft model on the clock, beside the best static chain of the pair and Hugging Face's prompt lookup."""
