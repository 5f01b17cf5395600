"""Names that the benchmark writes and the report reads: arms, splits and files."""

PLAIN, HF_PLAIN, HF_ASSISTED, HRAD = "autoregressive", "hf_generate", "hf_assisted", "hrad"
HF_FORWARD = "plain_hf_forward"  # plain decoding by our loop over Hugging Face's own forward
CHAIN, CONFIDENCE = "chain-", "confidence-"  # followed by γ and by ε
VALIDATION, TEST, REPLAY = "validation", "test", "replay"
MEASUREMENTS, REPLAYS = "measurements.parquet", "replay.parquet"
FINDINGS, PROVENANCE = "findings.json", "provenance.json"
