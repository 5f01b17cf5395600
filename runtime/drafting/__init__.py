"""How candidate tokens are proposed, by kind."""

from runtime.drafting.chain import ChainConfig, LookupConfig
from runtime.drafting.draft import Drafter
from runtime.drafting.trees import DelayedTreeConfig, ForkConfig, MultiCandidateConfig

DRAFTERS: dict[str, type[Drafter]] = {
    "chain": ChainConfig,
    "delayed_tree": DelayedTreeConfig,
    "multi_candidate": MultiCandidateConfig,
    "fork": ForkConfig,
    "lookup": LookupConfig,
}
