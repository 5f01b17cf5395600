"""What tests of the branch-parallel decoder share: drafts that are right in part, rounds with what was drafted beside them."""

from dataclasses import dataclass
from unittest import mock

import torch

from runtime import build_decoder
from runtime.audit.tables import TableModel
from runtime.branching.draft import BranchDraft
from tests.toys import tiny_llama


def sharp_llama(seed, sharpness=1.0):
    """`tiny_llama` with logits multiplied."""
    model = tiny_llama(seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness)
    return model


def shaken_llama(seed, by=0.1, sharpness=1.0):
    """`sharp_llama` with its weights changed by a share: a draft whose paths are accepted in part."""
    model, generator = sharp_llama(seed, sharpness), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + by * torch.randn(parameter.shape, generator=generator))
    return model


class Scripted(TableModel):
    """Writes ``text`` behind a prompt of ``prompt_length`` tokens; where it lies, the true token is its second choice, or the
    last if it is ``hopeless``."""

    def __init__(self, text, prompt_length, lies=(), hopeless=False):
        self.vocabulary_size, self.text, self.prompt_length = 16, text, prompt_length
        self.lies, self.hopeless = set(lies), hopeless

    def logits(self, context):
        place = len(context) - self.prompt_length
        token = self.text[place] if place < len(self.text) else 1
        logits = torch.zeros(16, dtype=torch.float64)
        if place in self.lies:
            logits[(token + 1) % 16] = 4.0
            logits[token] = -4.0 if self.hopeless else 2.0
        else:
            logits[token] = 4.0
        return logits


@dataclass(frozen=True)
class Round:
    """``text``: committed before the round, prompt and newest token included; ``pending``: the block that was verified;
    ``branches``: each candidate and what was drafted behind it."""

    text: list[int]
    pending: list[int]
    branches: list[list[int]]
    step: object

    @property
    def record(self):
        return self.step.record

    @property
    def kind(self):
        """How it ended."""
        if not self.record.ends_segment:
            return "hit"
        if self.record.accepted < self.record.submitted:
            return "rejection"
        return "miss" if self.branches else "no branches"


def branch_decoder(pair, **options):
    """Both jobs one after the other."""
    return build_decoder(pair, {"method": "branch_parallel", "overlap": "none", **options})


def watched(decoder, prompt, **options):
    """The rounds of a request, one after the other (their evidence is valid until the next one)."""
    branched = []
    honest = BranchDraft.branch

    def watching(self):
        branches = honest(self)
        branched.append([list(branch.tokens) for branch in self._branches])
        return branches

    with mock.patch.object(BranchDraft, "branch", watching):
        text = list(prompt)
        for index, step in enumerate(decoder.stream(prompt, observe=True, **options)):
            if index:
                yield Round(list(text), step.evidence.tree.token_list, branched[-1], step)
            text += step.tokens
