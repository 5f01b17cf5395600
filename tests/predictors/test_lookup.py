"""Lookups: the longest match, the latest of equals, what followed it and how often, against a search of the whole text."""

import itertools

import pytest
import torch

from predictors.lookup import CONTEXT, NOTHING, Found, Lookup, founds


def searched(tokens, most, longest):
    """Every earlier end is tried, the latest first."""
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                context = min(length, CONTEXT)
                ends = [
                    other
                    for other in range(context, len(tokens))
                    if tokens[other - context : other] == tokens[-context:]
                ]
                agreed = sum(tokens[other] == tokens[end] for other in ends)
                return Found(length, tuple(tokens[end : end + most]), len(ends), agreed)
    return NOTHING


@pytest.mark.parametrize("longest", [1, 2, 4, 16])
@pytest.mark.parametrize("vocabulary", [1, 2, 3, 9])
def test_what_is_found_is_what_a_search_finds(vocabulary, longest):
    generator = torch.Generator().manual_seed(vocabulary)
    lengths = set()
    for most, period in itertools.product((1, 5), (7, 40)):
        tokens = (torch.randint(vocabulary, (period,), generator=generator).tolist() * 40)[:40]
        made = founds(tokens, most, longest)
        assert made == [searched(tokens[:end], most, longest) for end in range(1, len(tokens) + 1)]
        lengths |= {found.length for found in made}
    assert lengths == set(range(longest + 1))


def test_tokens_may_come_in_any_portions():
    one, other = Lookup(), Lookup()
    one.extend([5, 6, 7, 5])
    one.extend([6])
    other.extend(iter([5, 6, 7, 5, 6]))
    assert one.found(9) == other.found(9) == Found(2, (7, 5, 6), 1, 1)


def test_a_match_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="longest must be >= 1, got 0"):
        Lookup(0)
    with pytest.raises(ValueError, match="longest must be >= 1"):
        founds([1], 1, longest=0)
