"""Greedy text of a Hugging Face model without any cache: the reference for what a decoder writes at temperature 0."""

from tests.ancestral import LlamaLogits


def greedy_text(model, prompt, length):
    """The next ``length`` tokens by argmax."""
    tokens, reference = list(prompt), LlamaLogits(model)
    for _ in range(length):
        tokens.append(int(reference.logits(tokens).argmax()))
    return tokens[len(prompt) :]
