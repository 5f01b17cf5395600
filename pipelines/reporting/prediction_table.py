"""Predicted tokens/s of static chains as text: what a profile says once the acceptance is known or guessed.

Every drafted token is accepted with the same probability α, independently (the closed form); prefills and the end of the budget
are counted (`predictors.latency.throughput`). Source: specification of drafting, section 10.
"""

from predictors.latency import LatencyProfile, Prediction, generation_latency, iid_accepted_law

GAMMAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


def prediction_table(
    profile: LatencyProfile, alpha: float, prompt_tokens: int, new_tokens: int, temperature: float
) -> str:
    """A line per static length, the fastest marked; brackets are the range of the latencies' quartiles."""
    predictions = {
        gamma: generation_latency(
            profile, iid_accepted_law(alpha, gamma), gamma, prompt_tokens, new_tokens, temperature > 0
        )
        for gamma in GAMMAS
    }
    plain = predictions[0].tokens_per_second
    best = max(predictions, key=lambda gamma: predictions[gamma].tokens_per_second)
    request = f"{new_tokens} tokens after a prompt of {prompt_tokens}, T={temperature:g}"
    title = f"predicted tokens/s at acceptance {alpha:g}: {request}"
    return "\n".join([title, *(_line(gamma, made, plain, gamma == best) for gamma, made in predictions.items())])


def _line(gamma: int, made: Prediction, plain: float, best: bool) -> str:
    name = f"chain γ={gamma}" if gamma else "plain"
    speed = f"{made.tokens_per_second:.0f} ({made.low:.0f}-{made.high:.0f})"
    return f"{name:<14}{speed:<20}{made.tokens_per_second / plain:.2f}x{'  fastest' if best else ''}"
