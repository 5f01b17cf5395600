"""Makers of programs for CPUs that do as CUDA graphs: one keeps operations over fixed memory, one shows when the host reads."""

import threading
from unittest import mock

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

ONE_AT_A_TIME = threading.Lock()  # tracing patches what all threads use


class OnDevice(torch.Tensor):
    """A tensor that stands for one on a device, as does all that is computed from it; counts how often the host waits for one."""

    reads = 0

    def cpu(self):
        OnDevice.reads += 1
        return self.as_subclass(torch.Tensor)


def _reading(name):
    return lambda self: getattr(self.cpu(), name)()


for _name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__"):
    setattr(OnDevice, _name, _reading(_name))


class HiddenReads(TorchDispatchMode):
    """Counts, too, what waits for a device without saying so: a scalar taken as an index, sizes that depend on values."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select")
    WAITS += ("repeat_interleave.Tensor", "repeat_interleave.self_Tensor")

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.name().removeprefix("aten::")
        if name in self.WAITS or name == "index.Tensor":
            there = [value for value in tree_leaves((args, kwargs)) if isinstance(value, OnDevice)]
            if there and (name in self.WAITS or any(value.dtype == torch.bool for value in there)):
                OnDevice.reads += 1
        return operation(*args, **(kwargs or {}))


class Traced:
    """Traces a program once and runs the trace. What the program looked at on the host is frozen in it; a program that looks at
    a tensor's value or makes one of host numbers is refused. Results lie at fixed places, and a run spoils the results of
    programs that were graphed later, whose memory it may use."""

    device = torch.device("cpu")

    def __init__(self):
        self._results = []
        self.runs = 0

    def make(self, function):
        layout = None

        def flat():
            nonlocal layout
            values, layout = tree_flatten(function())
            return values

        with (
            ONE_AT_A_TIME,
            mock.patch.object(proxy_tensor, "extract_val", lambda *_, **__: None),
        ):  # example values, slow
            trace = proxy_tensor.make_fx(flat)()
        made = [node for node in trace.graph.nodes if "lift_fresh" in str(node.target)]
        assert not made, f"a program made tensors of host numbers, which a graph cannot copy to the device: {made}"
        results = [value.clone() for value in trace()]
        number = len(self._results)
        self._results.append(results)

        def run():
            self.runs += 1
            for later in self._results[number + 1 :]:
                for value in later:
                    value.fill_(torch.nan if value.is_floating_point() else -1)
            for result, value in zip(results, trace(), strict=True):
                result.copy_(value)
            return tree_unflatten(results, layout)

        return run


class Marked:
    """Runs programs as they are; their results are `OnDevice`."""

    device = torch.device("cpu")

    def make(self, function):
        return lambda: tree_map(lambda value: value.as_subclass(OnDevice), function())
