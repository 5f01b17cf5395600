"""Answers whose speculation is judged, in token ids: lines of JSON, or what a server of vLLM or llama.cpp says.

    {"prompt": [1, 2], "tokens": [3, 4, 5], "temperature": 1.0, "top_p": 0.9, "emitted": [1, 2]}

A server is told every setting: vLLM's own are those of generation_config.json, llama.cpp's top-k 40, top-p 0.95, min-p 0.05.
Sources: vLLM 0.32, entrypoints/openai/completion/protocol.py; llama.cpp, tools/server/README.md.
"""

import json
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from predictors.config import Checked, Count, Share, Whole, not_empty, parse_config
from predictors.sampling import SamplingSettings

PATIENCE = 600.0  # seconds for an answer
CHAIN = {"samplers": ["temperature", "min_p", "top_k", "top_p"], "mirostat": 0, "dynatemp_range": 0.0}


@dataclass(frozen=True)
class Sample(Checked):
    """An answer ``tokens`` to ``prompt``, and how it was drawn; ``emitted``, if known: its tokens by passes of the target."""

    prompt: Annotated[tuple[Whole, ...], not_empty]
    tokens: Annotated[tuple[Whole, ...], not_empty]
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: Share = 0.0
    emitted: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.settings or (self.emitted and sum(self.emitted) != len(self.tokens)):
            raise ValueError(f"emitted must sum to the {len(self.tokens)} tokens, got {self.emitted}.")

    @property
    def settings(self) -> SamplingSettings:
        """Temperature and filters, but for ``min_p``."""
        return SamplingSettings(self.temperature, self.top_k, self.top_p)

    @property
    def setting(self) -> str:
        """The name of the whole setting."""
        return self.settings.name + (f", min-p {self.min_p:g}" if self.min_p else "")


def read_samples(path: Path) -> list[Sample]:
    """Read a file of samples; `ValueError` names the line that is none, or has keys that may change the probabilities."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: no JSON ({error}). Leave it out.") from error
        found.append(parse_config(Sample, row, f"{path}, line {number}"))
    if not found:
        raise ValueError(f"{path} holds no sample: a line of JSON for each, with prompt, tokens and temperature.")
    return found


@dataclass(frozen=True)
class Server:
    """A server at ``url`` that serves ``model``; `ValueError` where it refuses, or does not answer."""

    url: str
    model: str
    is_llama_cpp: bool

    @staticmethod
    def at(url: str) -> "Server":
        """Find out which server is there."""
        url = url.rstrip("/").removesuffix("/v1")
        try:
            model = fetched(f"{url}/v1/models")["data"][0]
            return Server(url, str(model["id"]), model.get("owned_by") == "llamacpp")
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{url}/v1/models lists no model: it is no server of vLLM or llama.cpp.") from error

    def answer(self, given: Sample, most: int, seed: int) -> Sample:
        """Ask for at most ``most`` tokens instead of those of ``given``."""
        prompt = list(given.prompt)
        asked = {"prompt": prompt, **given.settings.filters, "min_p": given.min_p, "seed": seed}
        asked |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        if self.is_llama_cpp:
            said = fetched(f"{self.url}/completion", asked | CHAIN | {"n_predict": most, "return_tokens": True})
            tokens, as_sent = said.get("tokens"), said.get("tokens_evaluated", len(prompt)) == len(prompt)
        else:
            asked |= {"model": self.model, "max_tokens": most, "return_token_ids": True, "repetition_penalty": 1.0}
            said = fetched(f"{self.url}/v1/completions", asked)["choices"][0]
            tokens, as_sent = said.get("token_ids"), said.get("prompt_token_ids", prompt) == prompt
        if not tokens or not as_sent:
            fault = "read another prompt than it was sent" if tokens else "gave no token ids"
            raise ValueError(f"{self.url} {fault}. Serve by vLLM 0.10.2 or later, or by llama.cpp's server.")
        return replace(given, tokens=tuple(tokens))


def fetched(url: str, asked: dict[str, Any] | None = None) -> Any:
    """Fetch what a server says in JSON."""
    body = None if asked is None else json.dumps(asked).encode()
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE) as answer:
            return json.load(answer)
    except HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())
        raise ValueError(f"{url} refuses ({error.code}): {said[:300]}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ValueError(f"{url} does not answer ({error}). Start it, and name it as http://HOST:PORT.") from error
