"""The clairvoyant policy for chains: it knows what will be accepted and, over the whole text, drafts what takes least time.

    best(s) = min_{m <= cap(s)} round(m) + best(s + min(N(s), m) + 1)           best(end) = 0

N(s) is what the verifier would accept from row s. No rule that decides when to stop a chain can be faster on the same text.
"""

from predictors.replay.chains import Accepted, ReplayedRound
from predictors.replay.prices import Prices
from predictors.replay.text import RecordedText


def clairvoyant(text: RecordedText, depth: int, accepted: Accepted, prices: Prices) -> list[ReplayedRound]:
    """The fastest rounds of chains of at most ``depth`` tokens."""
    seconds = [0.0] * (text.length + 1)
    chosen: list[ReplayedRound | None] = [None] * text.length
    for start in range(text.length - 1, 0, -1):
        best = None
        for submitted in range(min(depth, text.cap(start)) + 1):
            kept = min(accepted(start), submitted)
            emitted = min(kept + 1, text.length - start)
            context = text.prompt_tokens + start - 1
            spent = prices.chain(submitted, context) if submitted else prices.plain(context)
            spent += seconds[start + emitted]
            if best is None or spent < best:
                best = spent
                chosen[start] = ReplayedRound(context, submitted, submitted, 0, kept, emitted)
        assert best is not None
        seconds[start] = best
    rounds, start = [], 1
    while start < text.length:
        made = chosen[start]
        assert made is not None
        rounds.append(made)
        start += made.emitted
    return rounds
