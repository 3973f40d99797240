"""PyTorch modules for embeddings whose rows are in a `forerun.Table`.

`Embedding` and `EmbeddingBag` are called like those of `torch.nn`. Their rows are in the table,
which may be far larger than memory. Backward collects gradients row by row, and `SGD` applies them
to the table:

>>> import forerun, torch
>>> from forerun.torch import SGD, Embedding
>>> table = forerun.Table(dim=4)
>>> table.insert([3, 5], torch.ones(2, 4))
>>> words = Embedding(table)
>>> optimizer = SGD(words, lr=0.25)
>>> words(torch.tensor([[5, 3]])).sum().backward()
>>> optimizer.step()
>>> table[3].tolist()
[0.75, 0.75, 0.75, 0.75]

    rows             a tensor of each module: one row for each key that has a gradient now
    rows.grad        the sum of each key's gradients, in float32 at least
    autograd_anchor  the only parameter of each module, one zero that is never used

`rows` is what `SGD` optimizes, not a parameter of the module. So the optimizers of `torch.optim`
may be given all parameters of a model, and `DistributedDataParallel` may wrap it. `GradScaler`
works with each optimizer. `clip_grad_norm_` needs the rows besides the parameters:
`clip_grad_norm_([*model.parameters(), words.rows], 1.0)`. `zero_grad` of the model, of `SGD`, or of
another optimizer that has the model's parameters, clears the rows' gradients; so step both
optimizers before it.

After `model.half()`, for example, a module returns rows of the converted type, as
`torch.nn.Embedding` does; the table keeps its own type. `state_dict` has no rows: save the table
with its checkpoint. `load_state_dict` refuses a table without rows if the state is that of one
with rows.

The lookup is a registered operator, so `torch.compile` traces it without a graph break. If the keys
are on a GPU, so are the returned rows. Keys and rows are copied over PCIe on the current stream;
rows that the table's device tier holds on that GPU stay there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forerun import Table
from forerun._collective import Call, CollectiveCalls
from forerun._torch_gradients import bits
from forerun._torch_operators import next_call, wide
from forerun._torch_rows import RowsModule
from forerun.errors import InvalidArgumentError
from forerun.exchange import GroupTable

__all__ = ["Embedding", "EmbeddingBag", "SGD", "ShardedEmbeddingBag"]

# Types of rows that `Table.find_pooled` adds up, in float32, and returns.
_POOLED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class SGD(torch.optim.Optimizer):
    """Stochastic gradient descent for the rows of embeddings: those of these modules and of all
    modules inside.

    Step it alongside the optimizer of the dense parameters. It works with learning-rate schedulers
    and a `GradScaler` like any other optimizer. `step` clears the gradients that it has applied; if
    it is interrupted or fails, another `step` applies the others.
    """

    def __init__(self, modules: nn.Module | Iterable[nn.Module], lr: float) -> None:
        given = [modules] if isinstance(modules, nn.Module) else list(modules)
        if not all(isinstance(each, nn.Module) for each in given):
            raise InvalidArgumentError(
                "give SGD the modules, not their parameters: SGD(model, lr=...)"
            )
        inside = [module for each in given for module in each.modules()]
        rows = {id(module): module.rows for module in inside if isinstance(module, RowsModule)}
        if not rows:
            raise InvalidArgumentError("these modules contain no embedding of a table")
        _warn_of_own_tables(inside)
        super().__init__(list(rows.values()), {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter._forerun.apply(float(group["lr"]))
        return loss


def _warn_of_own_tables(modules: list[nn.Module]) -> None:
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return
    processes = distributed.get_world_size()
    if processes > 1 and any(
        isinstance(module, RowsModule) and isinstance(module.table, Table) for module in modules
    ):
        warnings.warn(
            f"each of the {processes} processes trains the rows of its own table, and they will "
            "differ: use ShardedEmbeddingBag, whose rows are spread over the processes",
            stacklevel=3,
        )


class Embedding(RowsModule):
    """`torch.nn.Embedding` over a table: maps keys of any shape to their rows.

    A key without a row gives zeros. During training, `initialize(n)` creates rows for new keys if
    it is given. The row of `padding_idx` is zeros and has no gradient.
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
        return self._lookup(self._as_keys(input))


class EmbeddingBag(RowsModule):
    """`torch.nn.EmbeddingBag` over a table: the sum, mean or maximum of the rows of each bag of
    keys.

    Bags are the rows of a matrix of keys, or the parts of a vector of keys that begin at `offsets`.
    With `include_last_offset`, the last offset is the end of the last bag; keys after it are in no
    bag, which `torch.compile` does not support. Keys without a row count as zeros; keys equal to
    `padding_idx` do not count at all.

    Sums and means of keys in CPU memory come from `Table.find_pooled`, which adds up rows as it
    finds them. Other bags (a maximum, keys on a GPU, rows of float64, weights that need a gradient
    or belong to 16-bit rows) have all their rows collected first.
    """

    def __init__(
        self,
        table: Table | GroupTable,
        *,
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        initialize: Callable[[int], Tensor] | None = None,
    ) -> None:
        super().__init__(table, padding_idx, initialize)
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgumentError(f"`mode` must be one of sum, mean, max, not {mode!r}")
        self.mode = mode
        self.include_last_offset = include_last_offset
        self._can_pool = (
            isinstance(table, Table) and mode != "max" and self._table_dtype in _POOLED_DTYPES
        )

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        weights = per_sample_weights
        if weights is not None and (self.mode != "sum" or weights.shape != input.shape):
            raise InvalidArgumentError("weights need `mode='sum'` and one weight per key")
        input = self._as_keys(input)
        keys, bounds, weights = self._flattened(input, offsets, weights)
        if self._is_pooled(input, offsets, weights):
            pooled: Tensor = torch.ops.forerun.find_pooled(
                keys.contiguous(),
                bounds,
                None if weights is None else weights.contiguous(),
                self._anchor(),
                self._number,
                self.embedding_dim,
                self.mode == "mean",
                self.padding_idx,
                next_call(),
            )
            return pooled
        bags = len(bounds) - 1
        bag = torch.ops.forerun.bags(keys, bounds)
        rows = self._lookup(keys)
        if weights is not None:
            rows = rows * weights.unsqueeze(-1)
        counted = (
            torch.ones_like(keys)
            if self.padding_idx is None
            else (keys != self.padding_idx).to(torch.int64)
        )
        counts = counted.new_zeros(bags).index_add(0, bag, counted).unsqueeze(-1)
        if self.mode == "max":
            rows = rows.masked_fill(counted.unsqueeze(-1) == 0, float("-inf"))
            least = rows.new_full((bags, self.embedding_dim), float("-inf"))
            greatest = least.scatter_reduce(0, bag.unsqueeze(-1).expand_as(rows), rows, "amax")
            return greatest.masked_fill(counts == 0, 0)
        summed = rows.to(wide(rows.dtype))
        sums = summed.new_zeros((bags, self.embedding_dim)).index_add(0, bag, summed)
        return (sums / counts.clamp(min=1) if self.mode == "mean" else sums).to(rows.dtype)

    def _is_pooled(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> bool:
        """Whether `Table.find_pooled` gives the same result."""
        given = (tensor for tensor in (input, offsets, weights) if tensor is not None)
        return (
            self._can_pool
            and all(tensor.device.type == "cpu" for tensor in given)
            # Otherwise each row would be rounded to the other type before it is added.
            and self.autograd_anchor.dtype == self._table_dtype
            and (
                weights is None
                or (weights.dtype == self._table_dtype == torch.float32)
                and not weights.requires_grad
            )
        )

    def _pool(
        self, keys: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool
    ) -> Tensor:
        """The sum or mean of the rows of each bag. Creates missing rows during training."""
        assert isinstance(self.table, Table)
        shape = (len(offsets) - 1, self.embedding_dim)
        pooled = torch.empty(shape, dtype=self._table_dtype, device="cpu")
        arguments = {
            "weights": None if weights is None else bits(weights),
            "mode": "mean" if mean else "sum",
            "dtype": self.table.dtype,
            "out": bits(pooled),
        }
        _, found = self.table.find_pooled(bits(keys), bits(offsets), **arguments)
        if self.training and self._initialize is not None and found.sum() < len(keys):
            self._make_rows(self.table, keys)
            self.table.find_pooled(bits(keys), bits(offsets), **arguments)
        return pooled

    def _flattened(
        self, input: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The concatenated keys, where each bag begins and at the end their number, and the
        weights."""
        if input.dim() == 2 and offsets is not None:
            raise InvalidArgumentError(
                "in a matrix of keys each row is a bag, so there must be no offsets"
            )
        if input.dim() != (2 if offsets is None else 1):
            raise InvalidArgumentError(
                "keys must be a matrix of bags, or a vector with the offsets of its bags"
            )
        if offsets is None:
            bags, length = input.shape
            bounds = torch.arange(bags + 1, device=input.device) * length
            return input.flatten(), bounds, None if weights is None else weights.flatten()
        bounds = offsets.to(torch.int64)
        if not self.include_last_offset:
            return input, torch.cat([bounds, bounds.new_full((1,), len(input))]), weights
        if len(bounds) == 0:
            raise InvalidArgumentError("offsets must have the end of the last bag, but are empty")
        # While a call is traced, the number is not known.
        if not torch.compiler.is_compiling() and 0 <= (end := int(bounds[-1])) < len(input):
            return input[:end], bounds, None if weights is None else weights[:end]
        return input, bounds, weights

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


class ShardedEmbeddingBag(EmbeddingBag):
    """`EmbeddingBag` whose rows are spread over the processes of a group, row by row.

    Each process has a `table` of its own. The constructor, `forward`, `SGD.step`, `checkpoint` and
    `load` are collective: all processes of the group make the same calls, each with its own bags.
    Keys go to the processes that own them, and rows come back; at a step gradients go the same way,
    and a row moves by the mean of those of all processes, as a parameter does in
    `DistributedDataParallel`, which may wrap the model. `group` must carry tensors in CPU memory,
    as gloo does. All processes need the same `seed`, which places the keys, and rows of the same
    size and type. Give each of several modules a `name`, the same in all processes: it tells them
    apart if processes make them in different orders. Other arguments are those of `EmbeddingBag`;
    `initialize` is called by the owner of a new key.

    The store of a table records whose rows it has. A table of another process, of another number of
    processes, seed or name is refused: `load` a checkpoint of it into empty tables.

    If a process fails in a collective call, all processes raise: `GroupError` with its rank and its
    error if nothing was done, or `PartialError` if other keys were served. A process that fails
    elsewhere, or vanishes, is noticed by the group itself, at the latest after its time-out.
    """

    def __init__(
        self,
        table: Table,
        *,
        group: Any = None,
        seed: int = 0,
        name: str = "",
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        initialize: Callable[[int], Tensor] | None = None,
    ) -> None:
        from torch import distributed

        self._group = group
        rank, processes = distributed.get_rank(group), distributed.get_world_size(group)
        with CollectiveCalls(rank, processes, self._all_to_all).joining(Call.CONSTRUCT):
            group_table = GroupTable(
                table, rank, processes, self._all_to_all, seed=seed, name=name
            )
            super().__init__(
                group_table,
                mode=mode,
                include_last_offset=include_last_offset,
                padding_idx=padding_idx,
                initialize=initialize,
            )
        group_table.check_same()

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        assert isinstance(self.table, GroupTable)
        if torch.compiler.is_compiling():
            # The arguments are checked while the call is traced, and the operator does the rest.
            return super().forward(input, offsets, per_sample_weights)
        with self.table.joining(Call.FIND):
            return super().forward(input, offsets, per_sample_weights)

    def _all_to_all(self, parts: list[Any]) -> list[Any]:
        """Sends an array of bytes to each process, and returns one from each: first the lengths."""
        from torch import distributed

        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64, device="cpu")
        coming = torch.empty_like(lengths)
        distributed.all_to_all_single(coming, lengths, group=self._group)
        sent = torch.cat([torch.from_numpy(part) for part in parts])
        received = torch.empty(int(coming.sum()), dtype=torch.uint8, device="cpu")
        distributed.all_to_all_single(
            received, sent, coming.tolist(), lengths.tolist(), group=self._group
        )
        return [part.numpy() for part in torch.split(received, coming.tolist())]

    def checkpoint(self, directory: str | os.PathLike[str], tag: str) -> str:
        """Writes this process's rows as a store, in a directory that names the tag, the process and
        the number of processes, and returns that directory. Call it between steps.

        No process goes on before all have written, so the time-out of the group must be longer
        than that takes. If a process fails, all raise, and none keeps what it wrote. After a crash
        a checkpoint is complete if the directories of all processes are there; one that is being
        written has the suffix `.partial`."""
        assert isinstance(self.table, GroupTable)
        return self.table.checkpoint(directory, tag)

    def load(self, directory: str | os.PathLike[str], tag: str) -> None:
        """Inserts the rows of a checkpoint, made by any number of processes with any seed, into the
        tables, which must be empty. Each process reads all of `directory` and takes the rows that
        it owns."""
        assert isinstance(self.table, GroupTable)
        self.table.load(directory, tag)
