"""Small bundles for a pair: random learned controllers without any training, settings alone, and ``auto`` of them."""

import copy
import dataclasses
import shutil

import torch

from predictors.actions import Action, Prices, Traffic
from predictors.bundle import AUTO, OTHERWISE, CaptureContract, ServingRange, bundle_hash, read_bundle, write_bundle
from predictors.grow import SCALARS as GROW_SCALARS
from predictors.grow import TOKEN, GrowNetwork
from predictors.head import FeatureSpec, HRADNetwork
from predictors.stopping import RESIDUAL, NetworkShape, StopNetwork, StopSpec
from predictors.survival import SCALARS, SurvivalNetwork
from predictors.tree_choice import SelectionRule, SelectionSpec, SelectorNetwork, Setting
from runtime.identity import pair_identity

LAYERS = (1, 2)
RULES = {"hrad": {"epsilon": 0.5}, "length": {"choice": "argmax", "draft_cost": 0.1}}


def most_traffic(action):
    """Of rollouts that never meet."""
    return Traffic(float(action.most_nodes), float(action.k * max(0, action.l2 - 1)))


CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}


def _written(folder, pair, card, temperatures=(0.0, 1.0), change=None, network=None, layers=(), invariant=False):
    """Write ``card``, made for ``pair``, and ``network``, if there is one; ``change(card)`` edits the card before export."""
    settings = tuple((temperature, 0.0, 1.0) for temperature in temperatures)
    settings += tuple((temperature, 0.0, 1.0, 1.0) for temperature in temperatures if temperature and invariant)
    serving = ServingRange(str(pair.target.dtype).removeprefix("torch."), settings, min_context=1, max_context=200)
    contract = CaptureContract(pair_identity(pair, layers), serving, provenance={})
    card = {"contract": contract.to_json(), "max_distance": 1e9, "decoder": copy.deepcopy(CHAIN)} | card
    if change is not None:
        change(card)
    write_bundle(folder, card, {} if network is None else network.state_dict())
    return folder


def random_bundle(
    folder,
    pair,
    feature_set="extended",
    gamma=2,
    seed=0,
    temperatures=(0.0, 1.0),
    change=None,
    kind="hrad",
    max_distance=1e9,
    **setting,
):
    """Write a bundle whose head is random but sharp, made for ``pair``; ``setting`` holds at every temperature, and
    ``change(card)`` edits the card before export."""
    num_classes = 3 if kind == "hrad" else gamma + 1
    torch.manual_seed(seed)
    hidden = pair.target.model.config.hidden_size
    spec = FeatureSpec(feature_set, LAYERS, hidden, hidden, gamma)
    reduced_size = None if feature_set == "paper" else 4
    network = HRADNetwork(spec.state_size, len(spec.scalars), reduced_size, (8, 8), num_classes=num_classes)
    with torch.no_grad():
        if feature_set == "extended":
            network.reduction.components.normal_()
        network.head[-1].weight.mul_(20)
    card = {
        "kind": kind,
        "feature_spec": dataclasses.asdict(spec),
        "settings": [head_setting(temperature, num_classes, RULES[kind], setting) for temperature in temperatures],
        "max_distance": max_distance,
        "prices": {"profile_hash": "none"},
        "decoder": CHAIN | {"drafter": {"kind": "chain", "gamma": gamma}},
    }
    return _written(folder, pair, card, temperatures, change, network, LAYERS)


def head_setting(temperature, num_classes, rule, changes):
    """What a card says of a temperature: for what is retained the same as for drafting, unless ``changes`` say more."""
    made = {
        "settings": {"temperature": temperature},
        "calibration": {"temperature": 1.0, "bias": [0.0] * num_classes},
        "rule": dict(rule),
        "static_gamma": 2,
    }
    made |= changes
    tried, retention = made["rule"] or dict(rule), made["rule"] and dict(made["rule"])
    retained = {"retention": retention, "retained_gamma": made["static_gamma"], "tried_retention": tried}
    return retained | {"tried": tried} | made


def settings_bundle(folder, pair, decoder):
    """Write settings alone: a ``decoder`` configuration, made for ``pair``."""
    return _written(folder, pair, {"kind": "fixed", "decoder": decoder})


def auto_bundle(folder, pair, routes):
    """Write a bundle of kind ``auto`` without any bundle in it."""
    return _written(folder, pair, {"kind": AUTO, "decoder": {}, "routes": routes})


def routed_bundle(folder, pair, bundle, decoder):
    """Write a bundle of kind ``auto``: a copy of ``bundle`` for greedy requests, the ``decoder`` configuration for others."""
    greedy = {"settings": {"temperature": 0.0}, "bundle": bundle.name, "sha256": bundle_hash(bundle)}
    auto_bundle(folder, pair, [greedy, {"settings": {"temperature": 1.0}, "decoder": decoder}])
    shutil.copytree(bundle, folder / bundle.name)
    return folder


STOP_NETWORKS = {
    "logistic": ("law", NetworkShape()),
    "early_stop": ("before", NetworkShape(hidden_sizes=(8, 8))),
    "specdecpp": ("behind", NetworkShape(RESIDUAL, depth=2)),
}


def stop_bundle(
    folder, pair, kind="early_stop", inputs=None, seed=0, temperatures=(0.0, 1.0), change=None, top=2, **rule
):
    """Write a stop model that is random but decided, made for ``pair``; its rule stops about half of the time."""
    torch.manual_seed(seed)
    of_kind, shape = STOP_NETWORKS[kind]
    inputs = inputs or of_kind
    spec = StopSpec((1,), len(pair.draft.embedding(0)), top)
    network = StopNetwork(spec.size(inputs), shape)
    with torch.no_grad():
        network.head[-1].weight.mul_(2 if shape.shape == RESIDUAL else 20)
        network.head[-1].bias.zero_()
    card = {
        "kind": kind,
        "stop_spec": dataclasses.asdict(spec),
        "inputs": inputs,
        "network": dataclasses.asdict(shape),
        "settings": [
            {"settings": {"temperature": temperature}, "static_length": 1}
            | {name: {"threshold": 0.5, "min_tokens": 0, **rule} for name in ("rule", "tried")}
            for temperature in temperatures
        ],
        "prices": {"draft_cost": 0.1, "gamma": 3, "context": 40.0, "profile_hash": "none"},
    }
    return _written(folder, pair, card, temperatures, change, network)


def survival_bundle(folder, pair, seed=0, temperatures=(0.0, 1.0), change=None, rate=1.0, pays=True, **rule):
    """Write a survival model that is random but decided, made for ``pair``; its rule stops some of the time."""
    torch.manual_seed(seed)
    network = SurvivalNetwork(8)
    with torch.no_grad():
        network.head[-1].weight.mul_(8)
        network.mean[:2] = torch.tensor([-2.0, -2.5])
    setting = {"rule": {"rate": rate, **rule}, "pays": pays, "static_length": 1, "costs": [1.0, 1.3, 1.5, 1.8]}
    card = {
        "kind": "survival",
        "scalars": list(SCALARS),
        "settings": [{"settings": {"temperature": temperature}, **setting} for temperature in temperatures],
        "prices": {"cost_ratio": 8.0, "context": 40.0, "profile_hash": "none"},
    }
    return _written(folder, pair, card, temperatures, change, network)


def grow_bundle(
    folder, pair, seed=0, temperatures=(0.0, 1.0), change=None, rate=1.0, worth=1.0, pays=True, gamma=3, lookup=0
):
    """Write a grow model that is random but decided, made for ``pair``, for greedy and invariant sampling; at temperatures above
    0 else it drafts one token. Up to ``lookup`` tokens of a lookup go beside its chains, the more the longer the match."""
    torch.manual_seed(seed)
    network = GrowNetwork(8)
    with torch.no_grad():
        network.head[-1].weight.mul_(8)
        network.mean[: len(TOKEN)] = -2.0
    rule = {"rate": rate, "worth": worth}
    setting = {
        "rule": rule,
        "static_length": 1,
        "static_leaves": [1],
        "costs": {"level": 0.2, "nodes": [1 + n / 20 for n in range(9 + lookup)]},
        "hazard": [-1.0, 2.0, 0.2, 0.0, 0.5, 0.0, 0.0, 0.0] if lookup else [],
    }
    settings = [{"settings": {"temperature": heat}, "pays": pays and not heat, **setting} for heat in temperatures]
    settings += [
        {"settings": {"temperature": heat, "invariant": True}, "pays": pays, **setting} for heat in temperatures if heat
    ]
    drafter = {"kind": "chain", "gamma": gamma, "leaves": [3] * gamma} | (
        {"lookup": {"length": lookup}} if lookup else {}
    )
    card = {
        "kind": "grow",
        "scalars": list(GROW_SCALARS),
        "settings": settings,
        "prices": {"cost_ratio": 8.0, "context": 40.0, "profile_hash": "none"},
        "decoder": {"method": "speculative", "drafter": drafter},
    }
    return _written(folder, pair, card, temperatures, change, network, invariant=True)


SIMPLE = {"match": 2, "length": 2, "tail": 1}
WEIGHED = {  # of a lookup in three tokens: of matches of 1 a token and one drawn after it, of longer ones more without
    "share": 1.0,
    "hazard": [-1.0, 1.2, -0.4, 0.0, 0.4, 0.0, 0.0, 0.0],
    "tails": [0, 1],
    "gained": [0.0, 0.4],
    "tokens": [2.0, 0.0, 0.0, 0.0, 0.0, -0.2, 0.0, 0.0],
    "drafted": [1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "costs": [[1.0, 1.1, 1.15, 1.2], [1.35, 1.4, 1.45, 1.5]],
    "behind": 0.01,
    "mean": [1.0, 1.0, 0.8, 1.0, 0.8, 0.5, 0.6, 1.0],
    "scale": [1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 0.3, 1.0],
    "max_distance": 1e9,
}


def sourced_bundle(
    folder, pair, kind="source", rule=None, pays=True, temperatures=(0.0, 1.0), lookup=3, chains_pay=True, **options
):
    """Write a bundle in which a lookup takes over by ``rule`` from the survival model of `survival_bundle`."""
    options |= {"temperatures": temperatures, "pays": chains_pay}
    inner = read_bundle(survival_bundle(folder.with_name(folder.name + "-chains"), pair, **options))
    rule = rule or {"takeover": SIMPLE, "source": WEIGHED}[kind]
    settings = [{"settings": {"temperature": heat}, "rule": rule, "pays": pays} for heat in temperatures]
    decoder = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3, "lookup": {"length": lookup}}}
    card = {"kind": kind, "contract": inner.card["contract"], "decoder": decoder, "settings": settings}
    write_bundle(folder, card | {OTHERWISE: inner.card}, inner.tensors)
    return folder


ACTIONS = (Action(1, 1, 0), Action(1, 2, 0), Action(2, 0, 1), Action(2, 1, 1))


def selector_bundle(
    folder,
    pair,
    actions=ACTIONS,
    verifier="traversal",
    seed=0,
    temperatures=(0.6, 1.0),
    change=None,
    margin=-1.0,
    sharp=3.0,
    states=True,
):
    """Write a delayed-tree selector that is random but decided, made for ``pair``; static is the first action."""
    torch.manual_seed(seed)
    hidden, draft_hidden = (len(model.embedding(0)) for model in (pair.target, pair.draft))
    spec = SelectionSpec((2,), (1,), hidden, draft_hidden, tuple(actions))
    contract_layers, spec = spec.layers, spec if states else spec.without_states()
    network = SelectorNetwork(spec, width=8, hidden_sizes=(16, 8), dropout=0.0)
    with torch.no_grad():
        network.head[0].weight[:, -3:] = 0  # what hardly changes from root to root
        network.head[-1].weight.mul_(20 * sharp)
        for gain, offset in zip(network.gain, network.offset, strict=True):
            gain.uniform_(0.5, 1.5)
            offset.normal_()
        features = torch.randn(200, spec.state_size + spec.num_scalars)
        features[:, -9:-3].abs_()
        network.head[-1].bias.sub_(network.eval()(features).mean(0))
    worth = tuple(3.0 - place for place in range(len(actions)))
    settings = tuple(Setting(temperature, 0, 1.0, 10.0, worth) for temperature in temperatures)
    prices = Prices((1, 100), ((0.01,) * len(actions), (0.02,) * len(actions)), 0.0, "none")
    card = {
        "kind": "delayed_tree",
        "selection_spec": dataclasses.asdict(spec),
        "rule": dataclasses.asdict(SelectionRule("surplus", 1.0, margin, 1e9, settings)),
        "prices": dataclasses.asdict(prices),
        "traffic": [dataclasses.asdict(most_traffic(action)) for action in actions],
        "decoder": CHAIN
        | {"drafter": {"kind": "delayed_tree", **dataclasses.asdict(actions[0])}, "verifier": verifier},
    }
    return _written(folder, pair, card, temperatures, change, network, contract_layers)


def controller_bundle(kind, folder, pair, **options):
    """Write a bundle of any ``kind`` of controller that is exported, as its own function does."""
    writers = {"survival": survival_bundle, "grow": grow_bundle, "delayed_tree": selector_bundle}
    if kind in writers:
        return writers[kind](folder, pair, **options)
    several = {"hrad": random_bundle, "length": random_bundle, "takeover": sourced_bundle, "source": sourced_bundle}
    return (several | dict.fromkeys(STOP_NETWORKS, stop_bundle))[kind](folder, pair, kind=kind, **options)
