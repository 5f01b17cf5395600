"""Names shared by the stages that write and read traces: the contract between them is a file format."""

from dataclasses import dataclass

MANIFEST = "manifest.json"
SPLITS = TRAIN, VALIDATION, TEST = ("train", "validation", "test")


@dataclass(frozen=True)
class Prompt:
    """One row of ``prompts.parquet``; ``text`` is for people, ``tokens`` is what is decoded from."""

    id: str
    document: str
    source: str
    slice: str
    split: str
    text: str
    tokens: list[int]


# column -> Arrow type: whose continuation, under which sampling setting
PLACE_COLUMNS = {
    "prompt_id": "string",
    "document": "string",
    "slice": "string",
    "split": "string",
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "batch_size": "int32",
}

ROOT_TRACES_VERSION = 1

# One row per root of a target trajectory. "state<…>" and "scalars<…>" are the features of `predictors.selection.features`,
# "actions<…>" has one entry per action of the manifest, "labels<…>" is [draws, rules, actions] flattened.
ROOT_COLUMNS = {
    **PLACE_COLUMNS,
    "root": "int32",  # number of the root along its trajectory
    "position": "int32",  # committed tokens at the root, the newest one among them
    "continuation": "continuation<int32>",  # of the prompt, up to the newest token; -1 behind it
    "state": "state<float16>",
    "scalars": "scalars<float32>",
    "efficiency": "labels<float32>",  # expected emitted tokens of a step, exact on each draw's trees; NaN: not taken, not drawn
    "nodes": "actions<float32>",  # distinct nodes of the tree, mean over draws
    "fed": "actions<float32>",  # of them those on branch levels that a further level hangs under
}

GUESS_TRACES_VERSION = 1

# One row per pass of a model that drafts for itself, behind the prefill.
GUESS_COLUMNS = {
    **PLACE_COLUMNS,
    "way": "int32",  # place in the manifest's configurations
    "round": "int32",
    "position": "int32",  # committed tokens before the pass
    "guessed": "int32",  # rows to grow from
    "drafted": "int32",  # candidates
    "committed": "int32",  # accepted candidates and one more token, an end not cut
}

TEXT_TRACES_VERSION = 3

# One row per place of a target trajectory, from its second token on (`predictors.replay.text`). "slots<…>" has γ_max entries:
# the draft's law in front of the text's token, then those behind a token that was rejected there; "tops<…>" and "states<…>"
# hold as many lists in a row (of states perhaps the first alone), "candidates<…>" has an entry per number of candidates.
TEXT_COLUMNS = {
    **PLACE_COLUMNS,
    "place": "int32",  # the token's in the continuation
    "position": "int32",  # committed tokens at a root in front of it
    "newest": "int32",  # the token in front of it: the last committed one at that root
    "token": "int32",  # the text's own
    "target_probability": "float32",  # of that token under the target's processed distribution; 1 at temperature 0
    "probability": "float32",  # of that token under the draft's processed law
    "unit_probability": "float32",  # and under its temperature-1 law
    "ratio": "float64",  # draft over target probability, of the processed laws; infinite where the target's is 0
    "overlap": "float32",  # Σ min(p, q) of the processed laws: expected acceptance of a drawn token
    "rank": "int32",  # of the token among the draft's likeliest
    "mass": "candidates<float32>",  # the target's law on the draft's k likeliest tokens
    "hits": "candidates<float32>",  # P(one of k candidates drawn without replacement is accepted | the text)
    "root": "root<float16>",  # the target's state in front of the round (`predictors.features.state_vector`)
    "beside_ratio": "float64",  # draft over target probability of the first token drawn beside the text; NaN where none was
    "match": "int32",  # most last tokens of prompt and text that occurred before (`predictors.lookup`)
    "seen": "int32",  # earlier occurrences of the last few tokens of the match
    "agreed": "int32",  # of them those that went on with the first token of the lookup
    "lookup": "slots<int32>",  # what followed them then; -1 behind the newest token
    "tokens": "slots<int32>",  # drawn beside the text: -1 where nothing could be rejected, and behind an end of sequence
    "probabilities": "slots<float32>",
    "unit_probabilities": "slots<float32>",
    "confidence": "slots<float32>",  # max of the draft's temperature-1 law
    "entropy": "slots<float32>",  # nats
    "law_entropy": "slots<float32>",  # the same of the processed law
    "tops": "tops<float32>",  # largest probabilities of the temperature-1 law, descending
    "states": "states<float16>",  # the draft's state whose logits are the law
}
