"""The operators of `forerun.torch`, which `torch.compile` traces without a graph break.

    find                keys                     -> a row for each
    find_pooled         keys, offsets, weights   -> a row for each bag, by `Table.find_pooled`
    bags                keys, offsets            -> the bag of each key
    collect_gradients, collect_pooled_gradients     in backward: to the gradients of the module

Operators take only tensors and numbers, so a module and its gradients are passed as a number. The
anchor, a tensor of zeros, carries the graph, because keys have no gradient. The number of a call
keeps a compiler from making one call of two with the same keys and gradient: those of one would be
lost.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional

import torch
from torch import Tensor

from forerun.errors import InvalidArgumentError

modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
collected: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_calls = itertools.count()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def next_call() -> int:
    """A number for one call, or for one place of a call in compiled code."""
    return next(_calls)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type for sums of these elements. A sum of 16-bit floats would round at each addition."""
    return torch.promote_types(dtype, torch.float32)


@torch.library.custom_op("forerun::find", mutates_args=())
def _find(keys: Tensor, anchor: Tensor, module: int, dim: int, call: int) -> Tensor:
    rows: Tensor = modules[module]._find(keys)
    return rows


@_find.register_fake
def _(keys: Tensor, anchor: Tensor, module: int, dim: int, call: int) -> Tensor:
    return keys.new_empty((*keys.shape, dim), dtype=anchor.dtype)


# It returns a value (a gradient of zeros for the anchor), because a compiler may remove an operator
# that returns none.
@torch.library.custom_op("forerun::collect_gradients", mutates_args=())
def _collect(keys: Tensor, gradient: Tensor, anchor: Tensor, module: int, call: int) -> Tensor:
    gradients = collected.get(module)
    # The module is gone, so its gradients can no longer be requested.
    if gradients is not None:
        gradients.add(keys, gradient)
    return torch.zeros_like(anchor)


@_collect.register_fake
def _(keys: Tensor, gradient: Tensor, anchor: Tensor, module: int, call: int) -> Tensor:
    return torch.empty_like(anchor)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int, int, int], output: Tensor) -> None:
    keys, anchor, ctx.module, _, ctx.call = inputs
    # Not the anchor: an optimizer may change it before backward.
    ctx.save_for_backward(keys, torch.zeros_like(anchor))
    # Kept alive as long as the graph may run backward.
    ctx.gradients = collected.get(ctx.module)


def _backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None, None]:
    keys, anchor = ctx.saved_tensors
    of_anchor = torch.ops.forerun.collect_gradients(
        keys, gradient.contiguous(), anchor, ctx.module, ctx.call
    )
    return None, of_anchor, None, None, None


_find.register_autograd(_backward, setup_context=_remember)


@torch.library.custom_op("forerun::bags", mutates_args=())
def _bags(keys: Tensor, offsets: Tensor) -> Tensor:
    first, last = (int(offsets[at]) for at in (0, -1))
    if first != 0:
        raise InvalidArgumentError(f"offset 0 is {first}, but the first bag begins at key 0")
    counts = offsets.diff()
    falls = (counts < 0).nonzero()
    if len(falls) > 0:
        at = int(falls[0])
        raise InvalidArgumentError(
            f"offset {at + 1} is {int(offsets[at + 1])}, below the one before, {int(offsets[at])}"
        )
    if last != len(keys):
        raise InvalidArgumentError(f"the last offset is {last}, but there are {len(keys)} keys")
    return torch.repeat_interleave(counts)


@_bags.register_fake
def _(keys: Tensor, offsets: Tensor) -> Tensor:
    return keys.new_empty(keys.shape, dtype=torch.int64)


# Optional, because older versions of PyTorch do not know `Tensor | None` in a signature.
@torch.library.custom_op("forerun::find_pooled", mutates_args=())
def _find_pooled(
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    anchor: Tensor,
    module: int,
    dim: int,
    mean: bool,
    padding_idx: Optional[int],
    call: int,
) -> Tensor:
    pooled: Tensor = modules[module]._pool(*_without(keys, offsets, weights, padding_idx), mean)
    return pooled


@_find_pooled.register_fake
def _(
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    anchor: Tensor,
    module: int,
    dim: int,
    mean: bool,
    padding_idx: Optional[int],
    call: int,
) -> Tensor:
    return keys.new_empty((offsets.shape[0] - 1, dim), dtype=anchor.dtype)


@torch.library.custom_op("forerun::collect_pooled_gradients", mutates_args=())
def _collect_pooled(
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    gradient: Tensor,
    anchor: Tensor,
    module: int,
    mean: bool,
    padding_idx: Optional[int],
    call: int,
) -> Tensor:
    gradients = collected.get(module)
    if gradients is not None:
        keys, offsets, weights = _without(keys, offsets, weights, padding_idx)
        counts = offsets.diff()
        each = gradient.to(wide(gradient.dtype))
        if mean:
            each = each / counts.clamp(min=1).unsqueeze(-1)
        each = each.repeat_interleave(counts, 0)
        if weights is not None:
            each = each * weights.unsqueeze(-1)
        gradients.add(keys, each)
    return torch.zeros_like(anchor)


@_collect_pooled.register_fake
def _(
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    gradient: Tensor,
    anchor: Tensor,
    module: int,
    mean: bool,
    padding_idx: Optional[int],
    call: int,
) -> Tensor:
    return torch.empty_like(anchor)


def _without(
    keys: Tensor, offsets: Tensor, weights: Optional[Tensor], padding_idx: Optional[int]
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """The bags without the keys that are `padding_idx`."""
    if padding_idx is None:
        return keys, offsets, weights
    is_valid = offsets[0] == 0 and offsets[-1] == len(keys) and (offsets.diff() >= 0).all()
    if not is_valid:
        # The lookup refuses them.
        return keys, offsets, weights
    counted = keys != padding_idx
    before = torch.cat([offsets.new_zeros(1), counted.cumsum(0)])
    return keys[counted], before[offsets], None if weights is None else weights[counted]


def _remember_pooled(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    keys, offsets, weights, anchor, ctx.module, _, ctx.mean, ctx.padding_idx, ctx.call = inputs
    ctx.save_for_backward(keys, offsets, weights, torch.zeros_like(anchor))
    ctx.gradients = collected.get(ctx.module)


def _backward_pooled(ctx: Any, gradient: Tensor) -> tuple[Optional[Tensor], ...]:
    keys, offsets, weights, anchor = ctx.saved_tensors
    of_anchor = torch.ops.forerun.collect_pooled_gradients(
        keys,
        offsets,
        weights,
        gradient.contiguous(),
        anchor,
        ctx.module,
        ctx.mean,
        ctx.padding_idx,
        ctx.call,
    )
    return None, None, None, of_anchor, None, None, None, None, None


_find_pooled.register_autograd(_backward_pooled, setup_context=_remember_pooled)
