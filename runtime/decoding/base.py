"""Parts of every decoder: a checked request, the stream of steps and its collection into a generation; and the decoder that
hands requests to others by their sampling settings."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from predictors.controllers import Controller, build_controller
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root
from runtime.device import own_settings
from runtime.invariant import Perturbation, noise_of
from runtime.monitor import Monitor
from runtime.pair import ModelPair
from runtime.request import Request, checked_chance, checked_ends, checked_prompt
from runtime.tree import TokenTree

if TYPE_CHECKING:
    from runtime.decoding.run import Run


@dataclass(frozen=True)
class Evidence:
    """A round's tree and the distributions behind its verdict, for collectors; valid until the next step.

    ``draft_laws`` holds one `NextLaw` per drawn token; ``target_probs`` [N + 1, V] the target's distributions at the tree's
    rows and ``hidden_NKD`` its tapped hidden states there (``None`` without taps).
    """

    root: Root
    tree: TokenTree
    draft_laws: list[NextLaw]
    target_probs: Tensor
    hidden_NKD: Tensor | None


@dataclass(frozen=True)
class Step:
    """One round as it ends: the ``tokens`` it emitted, its ``record``, and its ``evidence`` if observed."""

    tokens: list[int]
    record: RoundRecord
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Generation:
    """New ``tokens`` of a request, cut at the first end-of-sequence token, and its ``rounds``: round 0 is the prefill."""

    tokens: list[int]
    rounds: list[RoundRecord]


class Decoder(ABC):
    """Decodes one request at a time. Subclasses open a run for it, by their own way of interleaving draft and target.

    ``monitor``, if set, writes a record of every request (`runtime.monitor`).
    """

    monitor: Monitor | None = None
    invariant = False  # its own way to sample, where a request asks for none
    verification: str | None = None  # the rule that its configuration names

    def __init__(self, pair: ModelPair, controller: Controller) -> None:
        self.pair = pair
        self.controller = controller

    @abstractmethod
    def _open(self, request: Request) -> "Run":
        """Open a run for a request."""

    def _steps(self, request: Request) -> Generator[Step, None, None]:
        """Run the decoding loop: the prefill, then rounds until the request is done or given up."""
        devices = [model.device for model in self.pair.models.values()]
        with own_settings(devices):
            run = self._open(request)
        try:
            while not run.done:
                with own_settings(devices):
                    step = run.step()
                yield step
        finally:
            run.close()

    def route(self, settings: SamplingSettings) -> "Decoder":
        """Return the decoder that serves ``settings``: this one, unless it is several."""
        return self

    @property
    def depth(self) -> int:
        """Most tokens that a round submits in a row."""
        return 0

    @property
    def features(self) -> tuple[int, ...]:
        """The target's layers that the draft reads."""
        return ()

    @property
    def context_limit(self) -> int:
        """Most tokens, prompt and output together, that the models in use serve."""
        return self.pair.target.context_limit

    def generate(self, prompt_ids: Sequence[int] | Tensor, **options: Any) -> Generation:
        """Decode a prompt; options as in `stream`."""
        made = Generation([], [])
        for step in self.stream(prompt_ids, **options):
            made.tokens.extend(step.tokens)
            made.rounds.append(step.record)
        return made

    def stream(
        self,
        prompt_ids: Sequence[int] | Tensor,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        randomness: Any = None,
        invariant: bool | None = None,
        eos_token_id: int | Collection[int] | Tensor | None = None,
        observe: bool = False,
        layers: Sequence[int] = (),
        draft_layers: Sequence[int] = (),
    ) -> Iterator[Step]:
        """Decode a prompt, yielding each round as it ends.

        Parameters
        ----------
        prompt_ids
            Token ids: a list or a 1-D int64 tensor; at least one.
        max_new_tokens
            Budget of new tokens; prompt and budget together must fit the models' context, of a model with sliding attention
            its window.
        temperature, top_k, top_p
            Sampling settings of the target; temperature 0 is greedy. Output follows its distribution under them exactly.
        randomness
            A `Randomness`; ``None`` seeds one from torch's global generator.
        invariant
            At temperatures above 0, let the text follow from prompt and seed alone, whatever drafts (`runtime.invariant`).
            ``None`` takes the decoder's own way to sample.
        eos_token_id
            Ends the generation; ``None`` takes the target's own.
        observe
            Attach each round's evidence.
        layers, draft_layers
            Hidden states of target and draft to tap (Hugging Face numbers); a controller that taps layers itself fixes them.

        Raises
        ------
        ValueError
            For a prompt that is empty or no token ids, ids outside the vocabulary, a request longer than the context, a
            ``randomness`` that draws nothing, bad settings, or ``invariant`` with a verifier that is not ``match``.
        """
        settings = SamplingSettings(temperature, top_k, top_p, bool(invariant and temperature))
        decoder = self.route(settings)
        controller, limit = decoder.controller, decoder.context_limit
        models = (self.pair.target, self.pair.draft)
        bounds = [getattr(one, "context_bound", "") for one in models if one and one.context_limit == limit]
        size = self.pair.target.vocabulary_size
        ends = self.pair.target.eos_tokens if eos_token_id is None else checked_ends(eos_token_id)
        chance, perturbation = checked_chance(randomness), None
        if settings.invariant or (invariant is None and decoder.invariant and not settings.greedy):
            decoder.require_match()
            settings = replace(settings, invariant=True)
            perturbation = Perturbation(noise_of(chance), settings)
        request = Request(
            prompt=checked_prompt(prompt_ids, max_new_tokens, size, limit, max(bounds, default="")),
            max_new_tokens=max_new_tokens,
            settings=settings if perturbation is None else SamplingSettings(0.0),
            randomness=chance,
            eos_tokens=ends,
            vocabulary_size=size,
            layers=decoder._taps("layers", controller.layers, tuple(layers)),
            observe=observe,
            draft_layers=decoder._taps("draft_layers", controller.draft_layers, tuple(draft_layers)),
            views=controller.reads_views,
            perturbation=perturbation,
        )
        steps = decoder._steps(request)
        return steps if decoder.monitor is None else decoder.monitor.watched(steps, request, decoder.depth)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Serve ``model.generate(..., custom_generate=decoder)``: temperature, top-k, top-p, stopping criteria and streamers are
        honoured; other logits processors, padding, batches and beams are refused by name (`runtime.custom_generate`).

        Criteria get ``scores=None``, as from Hugging Face without ``output_scores``. Hugging Face keeps ``tokenizer=`` from a
        callable (transformers 5.23), so instead of ``stop_strings`` pass
        ``stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]``."""
        from runtime.custom_generate import decode_for_generate

        return decode_for_generate(
            self, model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
        )

    def require_match(self) -> None:
        """Raise `ValueError` if the caller named a rule that invariant sampling does not verify by."""
        if self.verification not in (None, "match"):
            raise ValueError(
                f"verifier {self.verification!r} is a rule of rejection, and invariant sampling keeps a token where it is the "
                'target\'s own. Leave the verifier out, or use "match".'
            )

    def _taps(self, name: str, own: tuple[int, ...], layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the layers to tap: the controller's ``own``, or those asked for."""
        if own and layers and layers != own:
            raise ValueError(
                f"{name} {layers}: the {self.controller.kind} controller taps {own}, and a pass has one set of taps."
            )
        return own or layers


class RoutedDecoder(Decoder):
    """Hands each request to a decoder by its sampling settings: what a tuned bundle serves. ``routes``: a decoder for each of
    some settings; at least one. Every one of them is lossless, so a request at settings that none was tuned for is served by the
    nearest, in temperature first."""

    def __init__(self, pair: ModelPair, routes: Sequence[tuple[SamplingSettings, Decoder]]) -> None:
        super().__init__(pair, build_controller({"kind": "fixed"}))
        self.routes = list(routes)

    def route(self, settings: SamplingSettings) -> Decoder:
        return min(self.routes, key=lambda route: route[0].distance(settings))[1].route(settings)

    @property
    def context_limit(self) -> int:
        return min(decoder.context_limit for _, decoder in self.routes)

    def _open(self, request: Request) -> "Run":
        return self.route(request.settings)._open(request)
