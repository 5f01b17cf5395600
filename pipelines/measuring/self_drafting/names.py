"""Names that the measurement of methods without a draft model writes and its report reads."""

DECODING = "decoding.parquet"
METHODS = ("progressive_tree", "lookahead", "self_draft")
# Families of arms.
CHAIN, CALIBRATED, GIVEN, HUGGING_FACE = "chain", "calibrated", "given", "hugging_face"
PROMPT_LOOKUP = "hf_prompt_lookup"
