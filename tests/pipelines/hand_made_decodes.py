"""Decodes written by hand: rows of what was timed."""

CODE, PROSE = ("code", ("a", "b", "c")), ("prose", ("d", "e"))


def decode(arm, prompt, seconds, tokens=10, document=None, slice_name="code", temperature=0.0, repeat=0, **more):
    """One row; a prompt is its own document unless told."""
    return {
        "arm": arm,
        "family": {"autoregressive": "plain"}.get(arm, arm.partition("-")[0]),
        "split": "test",
        "slice": slice_name,
        "document": document or prompt,
        "prompt": prompt,
        "prompt_tokens": 16,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "invariant": False,
        "repeat": repeat,
        "block": f"{prompt}/{temperature:g}/{repeat}",
        "tokens": tokens,
        "seconds": seconds,
        **more,
    }


def decodes(rate, slices=(CODE, PROSE), temperatures=(0.0, 1.0)):
    """Rows of every arm on one prompt of every document; ``rate(arm, slice, document, temperature)`` in tokens per second."""
    return [
        decode(arm, name, 10 / rate(arm, slice_name, name, temperature), slice_name=slice_name, temperature=temperature)
        for slice_name, documents in slices
        for name in documents
        for temperature in temperatures
        for arm in ("autoregressive", "chain-2", "chain-4", "challenger", "champion")
    ]
