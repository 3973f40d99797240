"""Embeddings whose rows are in a `forerun.Table`, as modules of PyTorch.

`Embedding` and `EmbeddingBag` are called as those of `torch.nn`; the rows they give are the table's, which may be far
larger than memory. Gradients are collected row by row as they flow back, and `apply_gradients` adds them to the table:

>>> import forerun, torch
>>> from forerun.torch import Embedding
>>> table = forerun.Table(dim=4)
>>> table.insert([3, 5], torch.ones(2, 4))
>>> words = Embedding(table)
>>> words(torch.tensor([[5, 3]])).sum().backward()
>>> words.apply_gradients(lr=0.25)
>>> table[3].tolist()
[0.75, 0.75, 0.75, 0.75]

What they do is a registered operator, so `torch.compile` takes it whole. Keys may be on a GPU, and then so are the rows:
both go over the link by the current stream, but for rows that the table's device tier has on that GPU, which stay there.
That has not yet been run on a GPU.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forerun import Table
from forerun.errors import InvalidArgumentError

__all__ = ["Embedding", "EmbeddingBag"]

# An operator takes tensors and numbers; this is which module a number stands for.
_modules: weakref.WeakValueDictionary[int, _Rows] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _bits(tensor: Tensor) -> Any:
    """The tensor's memory as an array, unless it is on a GPU. What NumPy has no type for is seen as integers."""
    tensor = tensor.detach()
    if tensor.is_cuda:
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@torch.library.custom_op("forerun::find", mutates_args=())
def _find(keys: Tensor, gate: Tensor, module: int, dim: int) -> Tensor:
    return _modules[module]._find(keys)


@_find.register_fake
def _(keys: Tensor, gate: Tensor, module: int, dim: int) -> Tensor:
    return keys.new_empty((*keys.shape, dim), dtype=gate.dtype)


# It gives something, a gradient of 0 for the gate, so that no compiler takes it for an operator without effect.
@torch.library.custom_op("forerun::collect_gradients", mutates_args=())
def _collect(keys: Tensor, gradient: Tensor, gate: Tensor, module: int) -> Tensor:
    _modules[module]._gradients.append((keys.flatten().clone(), gradient.detach().flatten(0, -2).clone()))
    return gate.new_zeros(())


@_collect.register_fake
def _(keys: Tensor, gradient: Tensor, gate: Tensor, module: int) -> Tensor:
    return gate.new_empty(())


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    keys, gate, ctx.module, _ = inputs
    ctx.save_for_backward(keys, gate)


def _backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None]:
    keys, gate = ctx.saved_tensors
    return None, torch.ops.forerun.collect_gradients(keys, gradient.contiguous(), gate, ctx.module), None, None


_find.register_autograd(_backward, setup_context=_remember)


class _Rows(nn.Module):
    """Rows of a table, and the gradients that came back to them."""

    def __init__(
        self, table: Table, padding_idx: int | None, initialize: Callable[[int], Tensor] | None
    ) -> None:
        super().__init__()
        dtype = getattr(torch, table.dtype)
        if not dtype.is_floating_point:
            raise InvalidArgumentError(f"an embedding has rows of floating point, and the table's are {table.dtype}")
        self.table = table
        self.embedding_dim = table.dim
        self.padding_idx = padding_idx
        self._initialize = initialize
        self._gradients: list[tuple[Tensor, Tensor]] = []
        # Keys have no gradient. This has, and lets those of the rows through.
        self._gate = nn.Parameter(torch.zeros((), dtype=dtype))
        self._number = next(_numbers)
        _modules[self._number] = self

    def _find(self, wanted: Tensor) -> Tensor:
        keys, rows = wanted.cpu(), self._room(wanted)
        _, found = self.table.find(_bits(keys), out=_bits(rows))
        if self.training and self._initialize is not None and not found.all():
            is_missing = ~torch.from_numpy(found)
            if self.padding_idx is not None:
                is_missing &= keys != self.padding_idx
            missing = torch.unique(keys[is_missing])
            made = self._initialize(len(missing)).to("cpu", rows.dtype).contiguous()
            self.table.insert(_bits(missing), _bits(made))
            self.table.find(_bits(keys), out=_bits(rows))
        return rows.to(wanted.device, non_blocking=True)

    def _room(self, wanted: Tensor) -> Tensor:
        """Zeros for the rows of keys: where the table can put rows that are to be where the keys are."""
        shape, dtype = (*wanted.shape, self.embedding_dim), self._gate.dtype
        if wanted.is_cuda and wanted.device.index == self.table.gpu:
            return torch.zeros(shape, dtype=dtype, device=wanted.device)
        # Pinned memory goes over the link while the processor goes on.
        return torch.zeros(shape, dtype=dtype, pin_memory=wanted.is_cuda)

    def _lookup(self, keys: Tensor) -> Tensor:
        if keys.dtype != torch.int64 or keys.device.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"keys are a tensor of int64 on the CPU or a CUDA device, not of {keys.dtype} on {keys.device}"
            )
        rows: Tensor = torch.ops.forerun.find(keys.contiguous(), self._gate, self._number, self.embedding_dim)
        if self.padding_idx is not None:
            rows = rows.masked_fill((keys == self.padding_idx).unsqueeze(-1), 0)
        return rows

    def collected_gradients(self) -> tuple[Tensor, Tensor]:
        """Keys that gradients came back to since `apply_gradients` or `clear_gradients`, each once, and their sums."""
        if not self._gradients:
            return torch.empty(0, dtype=torch.int64), torch.empty((0, self.embedding_dim), dtype=self._gate.dtype)
        keys, positions = torch.unique(torch.cat([keys for keys, _ in self._gradients]), return_inverse=True)
        gradients = torch.cat([gradient for _, gradient in self._gradients])
        sums = gradients.new_zeros((len(keys), self.embedding_dim))
        return keys, sums.index_add_(0, positions, gradients)

    def apply_gradients(self, lr: float) -> None:
        """Adds `-lr` times the collected gradients to the rows, as `torch.optim.SGD` would, and forgets them."""
        keys, sums = self.collected_gradients()
        self.table.add(_bits(keys.cpu()), _bits(sums.mul_(-lr).cpu()))
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Forgets the collected gradients."""
        self._gradients.clear()

    def extra_repr(self) -> str:
        return f"{self.table!r}, padding_idx={self.padding_idx}"


class Embedding(_Rows):
    """`torch.nn.Embedding` over a table: keys of any shape to their rows.

    A key without a row gives zeros; while training, `initialize(n)` makes rows for those met first, if it is given.
    The row of `padding_idx` is zeros and has no gradient.
    """

    def __init__(
        self,
        table: Table,
        *,
        padding_idx: int | None = None,
        initialize: Callable[[int], Tensor] | None = None,
    ) -> None:
        super().__init__(table, padding_idx, initialize)

    def forward(self, input: Tensor) -> Tensor:
        return self._lookup(input)


class EmbeddingBag(_Rows):
    """`torch.nn.EmbeddingBag` over a table: the sum, mean or maximum of the rows of each bag of keys.

    Bags are the rows of a matrix of keys, or the parts of a vector of keys that begin at `offsets`. Keys without a row
    count as zeros, those that are `padding_idx` not at all.
    """

    def __init__(
        self,
        table: Table,
        *,
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        initialize: Callable[[int], Tensor] | None = None,
    ) -> None:
        super().__init__(table, padding_idx, initialize)
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgumentError(f"`mode` is one of sum, mean, max, not {mode!r}")
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        keys, bag, bags = self._bags(input, offsets)
        rows = self._lookup(keys)
        if per_sample_weights is not None:
            if self.mode != "sum" or per_sample_weights.shape != input.shape:
                raise InvalidArgumentError("weights are for `mode='sum'`, one for each key")
            rows = rows * per_sample_weights.flatten().unsqueeze(-1)
        counted = torch.ones_like(keys) if self.padding_idx is None else (keys != self.padding_idx).to(torch.int64)
        counts = counted.new_zeros(bags).index_add(0, bag, counted).unsqueeze(-1)
        if self.mode == "max":
            rows = rows.masked_fill(counted.unsqueeze(-1) == 0, float("-inf"))
            least = rows.new_full((bags, self.embedding_dim), float("-inf"))
            greatest = least.scatter_reduce(0, bag.unsqueeze(-1).expand_as(rows), rows, "amax")
            return greatest.masked_fill(counts == 0, 0)
        sums = rows.new_zeros((bags, self.embedding_dim)).index_add(0, bag, rows)
        return sums / counts.clamp(min=1) if self.mode == "mean" else sums

    def _bags(self, input: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor, int]:
        """Keys one after the other, the bag of each, and the number of bags."""
        if input.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError("a matrix of keys has its bags in its rows, and takes no offsets")
            bags, length = input.shape
            return input.flatten(), torch.arange(bags, device=input.device).repeat_interleave(length), bags
        if input.dim() != 1 or offsets is None:
            raise InvalidArgumentError("keys are a matrix of bags, or a vector with the offsets of its bags")
        starts = offsets[:-1] if self.include_last_offset else offsets
        bag = torch.bucketize(torch.arange(len(input), device=input.device), starts, right=True) - 1
        return input, bag, len(starts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
