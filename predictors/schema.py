"""Names shared by the stages that write and read traces: the contract between them is a file format."""

from dataclasses import dataclass

MANIFEST = "manifest.json"
SPLITS = TRAIN, VALIDATION, TEST = ("train", "validation", "test")


@dataclass(frozen=True)
class Prompt:
    """A row of ``prompts.parquet``; ``text`` is for people, ``tokens`` is what is decoded from."""

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
    "invariant": "bool",
    "batch_size": "int32",
}

ROOT_TRACES_VERSION = 1

# One row per root of a target trajectory. "state<…>" and "scalars<…>" are the features of `predictors.tree_choice`,
# "actions<…>" has one entry per action of the manifest, "labels<…>" is [draws, rules, actions] flattened.
ROOT_COLUMNS = {
    **PLACE_COLUMNS,
    "root": "int32",  # number of the root along its trajectory
    "position": "int32",  # committed tokens at the root, the newest one among them
    "continuation": "continuation<int32>",  # of the prompt, up to the newest token; -1 after it
    "state": "state<float16>",
    "scalars": "scalars<float32>",
    "efficiency": "labels<float32>",  # expected emitted tokens of a step, exact on each draw's trees; NaN: not taken, not drawn
    "nodes": "actions<float32>",  # distinct nodes of the tree, mean over draws
    "fed": "actions<float32>",  # of them those on branch levels that a further level hangs under
}

GUESS_TRACES_VERSION = 1

# One row per pass of a model that drafts for itself, after the prefill.
GUESS_COLUMNS = {
    **PLACE_COLUMNS,
    "way": "int32",  # index in the manifest's configurations
    "round": "int32",
    "position": "int32",  # committed tokens before the pass
    "guessed": "int32",  # rows to grow from
    "drafted": "int32",  # candidates
    "committed": "int32",  # accepted candidates and one more token, an end not cut
}

TEXT_TRACES_VERSION = 4

# One row per root of a target trajectory, in front of its second, third, … token (`predictors.replay.text`). What concerns a
# draft concerns one that starts at this root: "slots<…>" has an entry for each of γ_max drafted tokens, "tops<…>", "states<…>"
# and "hits<…>" a list for each (of states perhaps the first alone).
TEXT_COLUMNS = {
    **PLACE_COLUMNS,
    "place": "int32",  # of the root's first token in the continuation
    "position": "int32",  # committed tokens at the root
    "newest": "int32",  # the last committed token
    "token": "int32",  # the text's own, in front of which the root is
    "target_probability": "float32",  # of that token under the target's processed distribution; 1 at temperature 0
    "root": "root<float16>",  # the target's state in front of the round (`predictors.head.state_vector`)
    "match": "int32",  # most last tokens of prompt and text that occurred before (`predictors.lookup`)
    "seen": "int32",  # earlier occurrences of the last few tokens of the match
    "agreed": "int32",  # of them those that went on with the first token of the lookup
    "lookup": "slots<int32>",  # what followed them then; -1 after the newest token
    "kept": "float64",  # uniform number that decides whether a drafted token is kept at the first token's position
    "tried": "float64",  # and whether one of several candidates there is
    # of a draft that has drafted the text's own tokens so far
    "ratio": "slots<float64>",  # draft over target probability of the text's next token; infinite where the target's is 0
    "probability": "slots<float32>",  # of that token under the draft; both 0 after the text's end
    # of the chain that is drafted: the text's tokens as far as they are accepted, the rejected one and a rollout after it
    "accepted": "int32",  # by the verifier of the manifest, of any number
    "tokens": "slots<int32>",  # -1 after an end of sequence, beyond the budget, and where nothing could be rejected
    "probabilities": "slots<float32>",  # of these tokens under the draft
    "unit_probabilities": "slots<float32>",  # and under its temperature-1 distribution
    "confidence": "slots<float32>",  # max of the draft's temperature-1 distribution
    "entropy": "slots<float32>",  # nats
    "law_entropy": "slots<float32>",  # the same of the processed distribution
    "tops": "tops<float32>",  # largest probabilities of the temperature-1 distribution, descending
    "states": "states<float16>",  # the draft's state whose logits the distribution is of
    # up to the rejected token
    "overlap": "slots<float32>",  # Σ min(p, q) of the processed distributions: expected acceptance of a drawn token
    "rank": "slots<int32>",  # of the text's token among the draft's likeliest; -1 after the rejected one
    "hits": "hits<float32>",  # P(one of k candidates drawn without replacement is accepted | the text)
    "rejected_ratio": "float64",  # draft over target probability of the rejected token; NaN where there is none
}
