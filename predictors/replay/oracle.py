"""The clairvoyant policy for chains: it knows what will be accepted and, over the whole text, drafts what takes least time.

    best(s) = min_{m <= cap(s)} round(m) + best(s + min(N(s), m) + 1)           best(end) = 0

N(s) is what the verifier would accept from row s. No rule that decides when to stop a chain can be faster on the same text.
"""

from operator import itemgetter

from predictors.replay.chains import Accepted, ReplayedRound
from predictors.replay.prices import Prices
from predictors.replay.text import RecordedText


def clairvoyant(text: RecordedText, depth: int, accepted: Accepted, prices: Prices) -> list[ReplayedRound]:
    """The fastest rounds of chains of at most ``depth`` tokens."""
    seconds = [0.0] * (text.length + 1)
    chosen: dict[int, ReplayedRound] = {}
    for start in range(text.length - 1, 0, -1):
        context, options = text.prompt_tokens + start - 1, []
        for submitted in range(min(depth, text.cap(start)) + 1):
            kept = min(accepted(start), submitted)
            emitted = min(kept + 1, text.length - start)
            spent = prices.chain(submitted, context) if submitted else prices.plain(context)
            options.append((spent + seconds[start + emitted], submitted, kept, emitted))
        seconds[start], submitted, kept, emitted = min(options, key=itemgetter(0))
        chosen[start] = ReplayedRound(context, submitted, submitted, 0, kept, emitted)
    rounds, start = [], 1
    while start < text.length:
        rounds.append(chosen[start])
        start += chosen[start].emitted
    return rounds
