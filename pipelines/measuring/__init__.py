"""The benchmark's parts: arms, interleaved measurement, bare replay, exactness, provenance."""
