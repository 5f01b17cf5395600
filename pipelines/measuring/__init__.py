"""The benchmark's parts: arms, interleaved measurement, replay, exactness, provenance."""
