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

    rows         a parameter of each module: one row for each key that has a gradient now
    rows.grad    the sum of each key's gradients, in float32 at least
    keys         the keys of these rows (in _Gradients, next to the parameter)

`zero_grad`, `clip_grad_norm_` and `GradScaler` work on these parameters as on all others. The
optimizers of `torch.optim` skip them, so one optimizer may be given all parameters of a model. Only
`SGD` of this module and `apply_gradients` change the table. After `model.half()`, for example, a
module returns rows of the converted type, as `torch.nn.Embedding` does; the table keeps its own
type.

The lookup is a registered operator, so `torch.compile` traces it without a graph break. If the keys
are on a GPU, so are the returned rows. Keys and rows are copied over PCIe on the current stream;
rows that the table's device tier holds on that GPU stay there.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import optimizer as _optimizer

from forerun import Table
from forerun._collective import Call, CollectiveCalls
from forerun._torch_operators import collected as _collected
from forerun._torch_operators import modules as _modules
from forerun._torch_operators import wide as _wide
from forerun.errors import InvalidArgumentError, PartialError
from forerun.exchange import GroupTable

__all__ = ["Embedding", "EmbeddingBag", "SGD", "ShardedEmbeddingBag"]

_numbers = itertools.count()

# Types of rows that `Table.find_pooled` adds up, in float32, and returns.
_POOLED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Held while rows are created for keys without one. Two threads that meet a new key at the same time
# must not both insert its row: the later insert would undo the updates in between.
_making_rows = threading.Lock()


def _bits(tensor: Tensor) -> Any:
    """The tensor's memory as an array, unless it is on a GPU.

    Types that NumPy lacks are viewed as integers.
    """
    tensor = tensor.detach()
    if tensor.is_cuda:
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class _Gradients:
    """The gradients of a module's rows.

    They outlive the module as long as a graph refers to them.
    """

    def __init__(self, table: Table | GroupTable, dtype: torch.dtype) -> None:
        self.table = table
        self.dtype = dtype
        self.lock = threading.RLock()
        self.keys = torch.empty(0, dtype=torch.int64)
        self.rows = nn.Parameter(torch.empty((0, table.dim), dtype=_wide(dtype)))
        self.rows._forerun = self  # type: ignore[attr-defined]

    def put(self, keys: Tensor, sums: Tensor) -> None:
        """Replaces the gradients: distinct keys, and the sum for each."""
        self.keys, self.rows.grad = keys, None
        # The parameter's content is never read, so it takes no memory, but a gradient must have the
        # shape of its parameter.
        self.rows.data = sums.new_zeros(()).expand_as(sums)
        self.rows.grad = sums

    def clear(self) -> None:
        with self.lock:
            self.put(self.keys.new_empty(0), self.rows.data.new_empty((0, self.table.dim)))
            self.rows.grad = None

    def add(self, keys: Tensor, gradients: Tensor) -> None:
        keys = keys.reshape(-1)
        gradients = gradients.detach().reshape(-1, self.table.dim).to(_wide(self.dtype))
        with self.lock:
            before = self.rows.grad
            # If the gradient is None or zero, someone has taken or reset it.
            if before is not None and bool(before.any()):
                keys = torch.cat([self.keys.to(keys.device), keys])
                gradients = torch.cat([before.to(gradients.device), gradients])
            keys, positions = torch.unique(keys, return_inverse=True)
            sums = gradients.new_zeros((len(keys), self.table.dim)).index_add_(
                0, positions, gradients
            )
            self.put(keys, sums)

    def get(self) -> tuple[Tensor, Tensor]:
        with self.lock:
            if self.rows.grad is None:
                return self.keys.new_empty(0), self.rows.data.new_empty((0, self.table.dim))
            return self.keys.clone(), self.rows.grad.clone()

    def apply(self, lr: float) -> None:
        with self.lock:
            keys, sums = self.get()
            try:
                # A call of a group is made by all its processes, also by those without gradients.
                if isinstance(self.table, GroupTable):
                    with self.table.joining(Call.ADD_AT):
                        self._add(self.table, keys, sums, lr)
                elif len(keys) > 0:
                    self._add(self.table, keys, sums, lr)
            except PartialError as error:
                # All others were added. Another call can add the ones that are left.
                failed = torch.tensor(error.positions, dtype=torch.int64, device=keys.device)
                self.put(keys[failed], sums[failed])
                raise
            self.clear()

    def _add(self, table: Table | GroupTable, keys: Tensor, sums: Tensor, lr: float) -> None:
        changes = sums.mul(-lr).to("cpu", self.dtype)
        table.add_at(_bits(keys.cpu()), _bits(changes))


def _hide_from(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Makes optimizers of dense parameters skip rows: they keep state by position, whose key
    changes."""
    if isinstance(optimizer, SGD):
        return
    hidden = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradients = getattr(parameter, "_forerun", None)
            if gradients is not None and parameter.grad is not None:
                hidden.append((gradients, gradients.keys, parameter.grad))
                parameter.grad = None
    optimizer._forerun_hidden = hidden  # type: ignore[attr-defined]


def _show_again(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for gradients, keys, gradient in optimizer.__dict__.pop("_forerun_hidden", ()):
        # Gradients that a closure has collected since then replace these.
        if gradients.rows.grad is None:
            gradients.put(keys, gradient)


_optimizer.register_optimizer_step_pre_hook(_hide_from)
_optimizer.register_optimizer_step_post_hook(_show_again)


class _Rows(nn.Module):
    """Rows of a table, and the gradients collected for them."""

    def __init__(
        self,
        table: Table | GroupTable,
        padding_idx: int | None,
        initialize: Callable[[int], Tensor] | None,
    ) -> None:
        super().__init__()
        dtype = getattr(torch, table.dtype)
        if not dtype.is_floating_point:
            raise InvalidArgumentError(
                f"an embedding needs floating-point rows, but the table's are {table.dtype}"
            )
        self.table = table
        self.embedding_dim = table.dim
        self.padding_idx = padding_idx
        self._initialize = initialize
        self._table_dtype = dtype
        self._gradients = _Gradients(table, dtype)
        self.rows = self._gradients.rows
        self._create_autograd_anchor(dtype)
        self._number = next(_numbers)
        _modules[self._number] = self
        _collected[self._number] = self._gradients

    def _create_autograd_anchor(self, dtype: torch.dtype) -> None:
        """Creates the tensor that carries gradients, because keys have none.

        It is not a parameter: no optimizer changes it. It has the type of the rows that the module
        returns.
        """
        self._autograd_anchor = torch.zeros((), dtype=dtype, requires_grad=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # Gradients keep their type: `half` must not round their sums.
        rows = self._parameters.pop("rows")
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._parameters["rows"] = rows
        dtype = fn(torch.empty(0, dtype=self._autograd_anchor.dtype)).dtype
        if dtype != self._autograd_anchor.dtype:
            self._create_autograd_anchor(dtype)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves nothing: the rows are in the table."""

    def _load_from_state_dict(self, *_: Any) -> None:
        """Loads nothing."""

    def _find(self, wanted: Tensor) -> Tensor:
        keys, rows = wanted.cpu(), self._room(wanted)
        self._fill(keys, rows)
        return rows.to(wanted.device, self._autograd_anchor.dtype, non_blocking=True)

    def _fill(self, keys: Tensor, rows: Tensor) -> None:
        """Looks up keys, and creates missing rows during training."""
        if isinstance(self.table, GroupTable):
            creates = self.training and self._initialize is not None
            self.table.find(_bits(keys), _bits(rows), self._prepare if creates else None)
            return
        _, found = self.table.find(_bits(keys), out=_bits(rows))
        if self.training and self._initialize is not None and not found.all():
            with _making_rows:
                self._make_rows(self.table, keys)
            self.table.find(_bits(keys), out=_bits(rows))

    def _prepare(self, keys: Any) -> None:
        """Creates rows for keys that this process owns."""
        assert isinstance(self.table, GroupTable)
        with _making_rows:
            self._make_rows(self.table.table, torch.from_numpy(keys.view("int64")))

    def _make_rows(self, table: Table, keys: Tensor) -> None:
        """Creates rows for keys without one."""
        assert self._initialize is not None
        # Another thread may have created some by now.
        is_missing = ~torch.from_numpy(table.contains(_bits(keys))).reshape(keys.shape)
        if self.padding_idx is not None:
            is_missing &= keys != self.padding_idx
        missing = torch.unique(keys[is_missing])
        if len(missing) > 0:
            made = self._initialize(len(missing)).to("cpu", self._table_dtype).contiguous()
            table.insert(_bits(missing), _bits(made))

    def _room(self, wanted: Tensor) -> Tensor:
        """Zeros for the rows of keys, on the device of the keys if the table can write rows
        there."""
        shape, dtype = (*wanted.shape, self.embedding_dim), self._table_dtype
        if wanted.is_cuda and wanted.device.index == self.table.gpu:
            return torch.zeros(shape, dtype=dtype, device=wanted.device)
        # Pinned memory is copied while the CPU continues.
        return torch.zeros(shape, dtype=dtype, pin_memory=wanted.is_cuda)

    def _anchor(self) -> Tensor:
        anchor = self._autograd_anchor
        return anchor if self.rows.requires_grad else anchor.detach()

    def _lookup(self, keys: Tensor) -> Tensor:
        if keys.dtype != torch.int64 or keys.device.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"keys are a tensor of int64 on the CPU or a CUDA device, not of {keys.dtype} on "
                f"{keys.device}"
            )
        rows: Tensor = torch.ops.forerun.find(
            keys.contiguous(), self._anchor(), self._number, self.embedding_dim
        )
        if self.padding_idx is not None:
            rows = rows.masked_fill((keys == self.padding_idx).unsqueeze(-1), 0)
        return rows

    def collected_gradients(self) -> tuple[Tensor, Tensor]:
        """The keys that have a gradient, each once, and their gradients: copies of what
        `rows.grad` holds."""
        return self._gradients.get()

    def apply_gradients(self, lr: float) -> None:
        """Adds `-lr` times the collected gradients to the rows, as `torch.optim.SGD` would, and
        clears them.

        If a tier fails for some keys (`PartialError`), only their gradients are kept, and another
        call adds them.
        """
        self._gradients.apply(lr)

    def clear_gradients(self) -> None:
        """Clears the collected gradients, as `zero_grad` does."""
        self._gradients.clear()

    def extra_repr(self) -> str:
        return f"{self.table!r}, padding_idx={self.padding_idx}"


class SGD(torch.optim.Optimizer):
    """Stochastic gradient descent for the rows of embeddings: those of these modules and of all
    modules inside.

    Step it alongside the optimizer of the dense parameters. It works with learning-rate schedulers
    and a `GradScaler` like any other optimizer. `step` clears the gradients that it has applied.
    """

    def __init__(self, modules: nn.Module | Iterable[nn.Module], lr: float) -> None:
        given = [modules] if isinstance(modules, nn.Module) else list(modules)
        inside = (module for each in given for module in each.modules())
        rows = {id(module): module.rows for module in inside if isinstance(module, _Rows)}
        if not rows:
            raise InvalidArgumentError("these modules contain no embedding of a table")
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


class Embedding(_Rows):
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
        return self._lookup(input)


class EmbeddingBag(_Rows):
    """`torch.nn.EmbeddingBag` over a table: the sum, mean or maximum of the rows of each bag of
    keys.

    Bags are the rows of a matrix of keys, or the parts of a vector of keys that begin at `offsets`.
    Keys without a row count as zeros; keys equal to `padding_idx` do not count at all.

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
        if self._is_pooled(input, offsets, weights):
            keys, ends = self._offsets(input, offsets)
            pooled: Tensor = torch.ops.forerun.find_pooled(
                keys.contiguous(),
                ends,
                None if weights is None else weights.flatten().contiguous(),
                self._anchor(),
                self._number,
                self.embedding_dim,
                self.mode == "mean",
                self.padding_idx,
            )
            return pooled
        keys, bag, bags = self._bags(input, offsets)
        rows = self._lookup(keys)
        if weights is not None:
            rows = rows * weights.flatten().unsqueeze(-1)
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
        wide = rows.to(_wide(rows.dtype))
        sums = wide.new_zeros((bags, self.embedding_dim)).index_add(0, bag, wide)
        return (sums / counts.clamp(min=1) if self.mode == "mean" else sums).to(rows.dtype)

    def _is_pooled(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> bool:
        """Whether `Table.find_pooled` gives the same result."""
        given = (tensor for tensor in (input, offsets, weights) if tensor is not None)
        return (
            self._can_pool
            and input.dtype == torch.int64
            and all(tensor.device.type == "cpu" for tensor in given)
            # Otherwise each row would be rounded to the other type before it is added.
            and self._autograd_anchor.dtype == self._table_dtype
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
        pooled = torch.empty((len(offsets) - 1, self.embedding_dim), dtype=self._table_dtype)
        arguments = {
            "weights": None if weights is None else _bits(weights),
            "mode": "mean" if mean else "sum",
            "dtype": self.table.dtype,
            "out": _bits(pooled),
        }
        _, found = self.table.find_pooled(_bits(keys), _bits(offsets), **arguments)
        if self.training and self._initialize is not None and found.sum() < len(keys):
            with _making_rows:
                self._make_rows(self.table, keys)
            self.table.find_pooled(_bits(keys), _bits(offsets), **arguments)
        return pooled

    def _check_shapes(self, input: Tensor, offsets: Tensor | None) -> None:
        if input.dim() == 2 and offsets is not None:
            raise InvalidArgumentError(
                "in a matrix of keys each row is a bag, so there must be no offsets"
            )
        if input.dim() != 2 and (input.dim() != 1 or offsets is None):
            raise InvalidArgumentError(
                "keys must be a matrix of bags, or a vector with the offsets of its bags"
            )

    def _starts(self, offsets: Tensor) -> Tensor:
        return offsets[:-1] if self.include_last_offset else offsets

    def _offsets(self, input: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
        """The concatenated keys, and where each bag begins; at the end, their number."""
        self._check_shapes(input, offsets)
        if offsets is None:
            bags, length = input.shape
            return input.flatten(), torch.arange(bags + 1) * length
        starts = self._starts(offsets).to(torch.int64)
        return input, torch.cat([starts, starts.new_full((1,), len(input))])

    def _bags(self, input: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor, int]:
        """The concatenated keys, the bag of each, and the number of bags."""
        self._check_shapes(input, offsets)
        if offsets is None:
            bags, length = input.shape
            return (
                input.flatten(),
                torch.arange(bags, device=input.device).repeat_interleave(length),
                bags,
            )
        starts = self._starts(offsets)
        bag = torch.bucketize(torch.arange(len(input), device=input.device), starts, right=True) - 1
        return input, bag, len(starts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


class ShardedEmbeddingBag(EmbeddingBag):
    """`EmbeddingBag` whose rows are spread over the processes of a group, row by row.

    Each process has a `table` of its own. The constructor, `forward`, `SGD.step` and `checkpoint`
    are collective: all processes of the group make the same calls, each with its own bags. Keys go
    to the processes that own them, and rows come back; at a step gradients go the same way, and
    owners add up those of all processes. `group` must carry tensors in CPU memory, as gloo does.
    All processes need the same `seed`, which places the keys, and rows of the same size and type.
    Other arguments are those of `EmbeddingBag`; `initialize` is called by the owner of a new key.

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
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        initialize: Callable[[int], Tensor] | None = None,
    ) -> None:
        from torch import distributed

        self._group = group
        rank, processes = distributed.get_rank(group), distributed.get_world_size(group)
        with CollectiveCalls(rank, processes, self._all_to_all).joining(Call.CONSTRUCT):
            group_table = GroupTable(table, rank, processes, self._all_to_all, seed=seed)
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

        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        coming = torch.empty_like(lengths)
        distributed.all_to_all_single(coming, lengths, group=self._group)
        sent = torch.cat([torch.from_numpy(part) for part in parts])
        received = torch.empty(int(coming.sum()), dtype=torch.uint8)
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
