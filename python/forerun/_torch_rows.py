"""What the modules of `forerun.torch` share: rows of a table, found by operators of PyTorch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from forerun import Table
from forerun._torch_gradients import Gradients, bits
from forerun._torch_operators import collected, modules, next_call
from forerun.errors import InvalidArgumentError
from forerun.exchange import GroupTable

__all__ = ["RowsModule"]

_numbers = itertools.count()

# Held while rows are inserted for keys without one. Two threads that meet a new key at the same
# time must not both insert its row: the later insert would undo the updates in between.
_inserting_rows = threading.Lock()


class RowsModule(nn.Module):
    """Rows of a table, and the gradients collected for them.

    Gradients need a graph, and keys have none. `autograd_anchor` stands in: a parameter of one
    zero, whose gradient is zero. Its content is never used, only its type (that of the rows that
    the module returns), whether it requires a gradient, and whether its gradient was cleared.
    """

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
        self._gradients = Gradients(table, dtype)
        self.rows = self._gradients.rows
        self.autograd_anchor = nn.Parameter(torch.zeros(1, dtype=dtype, device="cpu"))
        self._number = next(_numbers)
        modules[self._number] = self
        collected[self._number] = self._gradients

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `to_empty` leaves it uninitialized.
        self.reset_parameters()
        return self

    def reset_parameters(self) -> None:
        """Sets the only parameter to zero. The rows stay as they are."""
        nn.init.zeros_(self.autograd_anchor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._gradients.clear()

    def get_extra_state(self) -> Tensor:
        """The size of the rows and their number in this process's table, -1 if it is closed. The
        rows are in the table, not in the state."""
        table = self.table.table if isinstance(self.table, GroupTable) else self.table
        rows = -1 if table.closed else len(table)
        return torch.tensor([self.embedding_dim, rows], dtype=torch.int64, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        dim, rows = (int(number) for number in state)
        here = self.table.table if isinstance(self.table, GroupTable) else self.table
        if dim != self.embedding_dim:
            raise InvalidArgumentError(
                f"the state is that of an embedding with rows of {dim} elements, but the table has "
                f"rows of {self.embedding_dim}"
            )
        # A process of a group may own none of a few rows.
        is_known = isinstance(self.table, GroupTable) and self.table.is_resumed
        if rows > 0 and not is_known and not here:
            raise InvalidArgumentError(
                f"the state is that of an embedding with {rows} rows, but the table of this one has"
                " none, and a state holds no rows: open the table that belongs to it (a path, a "
                "checkpoint or a backup of it), or insert the rows, before load_state_dict"
            )

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise InvalidArgumentError(
            "a module whose rows are in a forerun.Table cannot be copied or pickled, because its "
            "rows would not be: save `model.state_dict()` and `table.checkpoint(directory)`, and "
            "make another module over a table that you open from the checkpoint"
        )

    def _find(self, wanted: Tensor) -> Tensor:
        keys, rows = wanted.cpu(), self._room(wanted)
        self._fill(keys, rows)
        return rows.to(wanted.device, self.autograd_anchor.dtype, non_blocking=True)

    def _fill(self, keys: Tensor, rows: Tensor) -> None:
        """Looks up keys, and creates missing rows during training."""
        if isinstance(self.table, GroupTable):
            creates = self.training and self._initialize is not None
            self.table.find(bits(keys), bits(rows), self._prepare if creates else None)
            return
        _, found = self.table.find(bits(keys), out=bits(rows))
        if self.training and self._initialize is not None and not found.all():
            self._make_rows(self.table, keys)
            self.table.find(bits(keys), out=bits(rows))

    def _prepare(self, keys: Any) -> None:
        """Creates rows for keys that this process owns."""
        assert isinstance(self.table, GroupTable)
        self._make_rows(self.table.table, torch.from_numpy(keys.view("int64")))

    def _make_rows(self, table: Table, keys: Tensor) -> None:
        """Creates rows for keys without one."""
        assert self._initialize is not None
        is_missing = ~torch.from_numpy(table.contains(bits(keys))).reshape(keys.shape)
        if self.padding_idx is not None:
            is_missing &= keys != self.padding_idx
        missing = torch.unique(keys[is_missing])
        if len(missing) == 0:
            return
        # Without the lock, because `initialize` may use any embedding.
        made = self._initialize(len(missing)).to("cpu", self._table_dtype).contiguous()
        with _inserting_rows:
            # Another thread may have inserted some by now.
            is_missing = ~torch.from_numpy(table.contains(bits(missing)))
            if is_missing.all():
                table.insert(bits(missing), bits(made))
            else:
                table.insert(bits(missing[is_missing]), bits(made[is_missing]))

    def _room(self, wanted: Tensor) -> Tensor:
        """Zeros for the rows of keys, on the device of the keys if the table can write rows
        there."""
        shape, dtype = (*wanted.shape, self.embedding_dim), self._table_dtype
        if wanted.is_cuda and wanted.device.index == self.table.gpu:
            return torch.zeros(shape, dtype=dtype, device=wanted.device)
        # Pinned memory is copied while the CPU continues.
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=wanted.is_cuda)

    def _anchor(self) -> Tensor:
        anchor = self.autograd_anchor
        if anchor.is_meta:
            raise InvalidArgumentError(
                'the module is on the device "meta", where nothing is computed: call `to_empty`'
            )
        if not torch.compiler.is_compiling():
            self._gradients.follow(anchor)
        return anchor

    def _as_keys(self, keys: Tensor) -> Tensor:
        """Checks keys, and widens those of 32 bits."""
        if keys.dtype not in (torch.int64, torch.int32) or keys.device.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                "keys are a tensor of int64 or int32 on the CPU or a CUDA device, not of "
                f"{keys.dtype} on {keys.device}"
            )
        return keys.to(torch.int64)

    def _lookup(self, keys: Tensor) -> Tensor:
        rows: Tensor = torch.ops.forerun.find(
            keys.contiguous(), self._anchor(), self._number, self.embedding_dim, next_call()
        )
        if self.padding_idx is not None:
            rows = rows.masked_fill((keys == self.padding_idx).unsqueeze(-1), 0)
        return rows

    @property
    def lost_gradients(self) -> int:
        """How many gradients were not added at a step, because the table had no row for the key:
        `initialize` is missing, or the row was evicted or erased."""
        return self._gradients.lost

    def collected_gradients(self) -> tuple[Tensor, Tensor]:
        """The keys that have a gradient, each once, and their gradients: copies of what
        `rows.grad` holds."""
        return self._gradients.get()

    def apply_gradients(self, lr: float) -> None:
        """Adds `-lr` times the collected gradients to the rows, as `torch.optim.SGD` would, and
        clears them.

        If a tier fails for some keys (`PartialError`), or the call is interrupted, the gradients
        that were not added are kept, and another call adds them.
        """
        self._gradients.apply(lr)

    def clear_gradients(self) -> None:
        """Clears the collected gradients, as `zero_grad` does."""
        self._gradients.clear()

    def extra_repr(self) -> str:
        return f"{self.table!r}, padding_idx={self.padding_idx}"
