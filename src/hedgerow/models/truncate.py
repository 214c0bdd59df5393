"""The first layers of a loaded model as a model of their own: the drafter that needs no training."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.models.hf import HFNet
from hedgerow.models.native import NativeNet
from hedgerow.systems.captured import Captured


def first_layers(net: HFNet | NativeNet, layers: int) -> HFNet | NativeNet:
    """A network of the first `layers` layers with the same embedding, final norm and head; no weight is copied.

    Raises: UsageError for a number of layers the model does not have; ModelError if its layers are not found.

    Source: LayerSkip (2404.16710), without its training; Draft & Verify (2309.08168) skips layers likewise.
    """
    if not 1 <= layers <= net.layers:
        raise UsageError(f"{layers} layers were asked for; the model has {net.layers}, allowed: 1 to {net.layers}")
    if isinstance(net, NativeNet):
        return net.first(layers)
    prefix = net.model.base_model_prefix
    base = _shallow(getattr(net.model, prefix))
    if not isinstance(getattr(base, "layers", None), nn.ModuleList):
        raise ModelError(f"model of type {net.config.model_type} keeps its layers under another name; it cannot be cut")
    base.layers = nn.ModuleList(list(base.layers)[:layers])
    model = _shallow(net.model)
    setattr(model, prefix, base)
    cut = HFNet(model)
    cut.layers = layers
    if net.captured is not None:
        cut.captured = Captured(net.captured.recorder)
    return cut


def _shallow(module: Any) -> Any:
    """The module with its own table of children, and the very same children."""
    out = copy.copy(module)
    out._modules = dict(module._modules)
    return out
