"""The gradients that `forerun.torch` collects for rows of a table, and their way into the table.

    backward ──add──> keys, rows.grad: the sum for each key ──apply──> the table adds -lr times each
                            └── in sight of clip_grad_norm_, GradScaler and zero_grad
"""

from __future__ import annotations

import threading
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forerun import Table
from forerun._collective import Call
from forerun._torch_operators import wide
from forerun.exchange import GroupTable

__all__ = ["Gradients", "bits"]

# So many times gradients are cleared before it is certain that no optimizer is there. A GradScaler
# skips as many steps until it has found its scale.
_CLEARED_MAX = 16


def bits(tensor: Tensor) -> Any:
    """The tensor's memory as an array, unless it is on a GPU.

    Types that NumPy lacks are viewed as integers.
    """
    tensor = tensor.detach()
    if tensor.is_cuda:
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class Gradients:
    """The gradients of a module's rows.

    They outlive the module as long as a graph refers to them.
    """

    def __init__(self, table: Table | GroupTable, dtype: torch.dtype) -> None:
        self.table = table
        self.dtype = dtype
        self.lock = threading.RLock()
        self.keys = torch.empty(0, dtype=torch.int64, device="cpu")
        self.rows = torch.empty((0, table.dim), dtype=wide(dtype), device="cpu")
        self.rows._forerun = self  # type: ignore[attr-defined]
        self.lost = 0
        self._anchor: Tensor | None = None
        self._anchor_has_grad = False
        self._cleared = 0
        self._are_used = False

    def follow(self, anchor: nn.Parameter) -> None:
        """Clears the gradients when those of this parameter are cleared."""
        # After `detach_` or in inference there is nothing to follow.
        if anchor is self._anchor or not (anchor.requires_grad and anchor.is_leaf):
            return
        self._anchor, self._anchor_has_grad = anchor, False

        def note(_: Tensor) -> None:
            self._anchor_has_grad = anchor is self._anchor

        # Some versions of PyTorch declare no types for it.
        hook = anchor.register_post_accumulate_grad_hook
        hook(note)  # type: ignore[no-untyped-call, unused-ignore]

    def _clear_with_anchor(self) -> None:
        if self._anchor is None or not self._anchor_has_grad or self._anchor.grad is not None:
            return
        self._anchor_has_grad = False
        if self.rows.grad is None:
            return
        self.clear()
        self._cleared += 1
        if self._cleared == _CLEARED_MAX and not self._are_used:
            warnings.warn(
                f"the gradients of an embedding's rows were cleared {_CLEARED_MAX} times and never "
                "applied: step a forerun.torch.SGD(model, lr=...) next to the other optimizer, "
                "before its zero_grad",
                stacklevel=2,
            )

    def put(self, keys: Tensor, sums: Tensor) -> None:
        """Replaces the gradients: distinct keys, and the sum for each."""
        self.keys, self.rows.grad = keys, None
        # The content of `rows` is never read, so it takes no memory, but a gradient must have the
        # shape of its tensor.
        self.rows.data = sums.new_zeros(()).expand_as(sums)
        self.rows.grad = sums

    def clear(self) -> None:
        with self.lock:
            self.put(self.keys.new_empty(0), self.rows.data.new_empty((0, self.table.dim)))
            self.rows.grad = None

    def add(self, keys: Tensor, gradients: Tensor) -> None:
        keys = keys.reshape(-1)
        gradients = gradients.detach().reshape(-1, self.table.dim).to(wide(self.dtype))
        with self.lock:
            self._clear_with_anchor()
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
            self._clear_with_anchor()
            self._are_used = True
            if self.rows.grad is None:
                return self.keys.new_empty(0), self.rows.data.new_empty((0, self.table.dim))
            return self.keys.clone(), self.rows.grad.clone()

    def apply(self, lr: float) -> None:
        """Adds `-lr` times each gradient to its row, and clears those that were added, however this
        ends."""
        with self.lock:
            keys, sums = self.get()
            marks = np.zeros(len(keys), np.uint8)
            try:
                self._add(keys, sums, lr, marks)
            except BaseException:
                # Another call can add the ones that are left.
                left = torch.from_numpy(marks == 0).to(keys.device)
                if not left.all():
                    self.put(keys[left], sums[left])
                raise
            self.clear()
            is_missing = torch.from_numpy(marks == 2).to(keys.device)
            self._count_lost(sums[is_missing])

    def _add(self, keys: Tensor, sums: Tensor, lr: float, marks: np.ndarray[Any, Any]) -> None:
        table = self.table
        if isinstance(table, GroupTable):
            # A call of a group is made by all its processes, also by those without gradients.
            joining: Any = table.joining(Call.ADD_AT)
            # As DistributedDataParallel does with the gradients of parameters.
            lr /= table.processes
        elif len(keys) == 0:
            return
        else:
            joining = nullcontext()
        with joining:
            changes = sums.mul(-lr).to("cpu", self.dtype)
            table._add_marked(bits(keys.cpu()), bits(changes), marks)

    def _count_lost(self, sums: Tensor) -> None:
        # Keys that are padding have gradients of zero.
        lost = int(sums.any(1).sum()) if len(sums) > 0 else 0
        if lost > 0 and self.lost == 0:
            self.lost += lost
            warnings.warn(
                f"the gradients of {lost} keys were lost, because the table has no row for them: "
                "give the embedding `initialize`, insert the rows, or give the table more memory "
                "if it evicts. `lost_gradients` of the module counts them; this is not said again",
                stacklevel=4,
            )
        else:
            self.lost += lost
