"""The row copies of SGLang's `sglang.kernels.ops.kvcache.hicache`, which its hierarchical cache
calls where they fit, and `forerun.kvcacheio` otherwise.

The functions have SGLang's names, arguments and layouts, destinations first:

>>> import torch
>>> from forerun.hicache import transfer_hicache_one_layer_mla
>>> host = torch.arange(40, dtype=torch.uint8).reshape(10, 4)
>>> pool = torch.zeros(3, 4, dtype=torch.uint8)
>>> rows, slots = torch.tensor([7, 2]), torch.tensor([0, 2])
>>> transfer_hicache_one_layer_mla(pool, slots, host, rows)
>>> pool.tolist()
[[28, 29, 30, 31], [0, 0, 0, 0], [8, 9, 10, 11]]

They follow SGLang 0.5.23 (PyPI, files of 2026-10-30). Rows of any size are copied, between tensors
in CPU memory too. `unroll`, `block_quota` and `page_size` shape SGLang's kernels; here the plan of
a launch follows from the row size, and they are ignored. Layouts, checks and streams are those of
`forerun.kvcacheio`.

    page_unified   one tensor   [page, head group, layer, K or V, token of page, head of group, dim]
                   of MLA       [page, layer, token of page, dim]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun import _kv_layouts as _kv
from forerun.errors import InvalidArgumentError

__all__ = [
    "can_use_hicache_jit_kernel",
    "can_use_page_unified_load_back_jit_kernel",
    "can_use_write_back_jit_kernel",
    "transfer_hicache_all_layer",
    "transfer_hicache_all_layer_mla",
    "transfer_hicache_all_layer_mla_staged_lf_page_unified",
    "transfer_hicache_all_layer_mla_staged_lf_pf",
    "transfer_hicache_all_layer_staged_lf_page_unified",
    "transfer_hicache_all_layer_staged_lf_pf",
    "transfer_hicache_one_layer",
    "transfer_hicache_one_layer_mla",
    "transfer_hicache_one_layer_mla_page_unified_lf",
    "transfer_hicache_one_layer_page_unified_lf",
]


def can_use_hicache_jit_kernel(
    *,
    element_size: int,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> bool:
    """Whether rows of this many bytes can be copied: all can. Nothing is compiled."""
    return element_size > 0


def can_use_write_back_jit_kernel(
    *, element_size: int, unroll: int | None = None, block_quota: int | None = None
) -> bool:
    """The same for the staged functions."""
    return element_size > 0


def can_use_page_unified_load_back_jit_kernel(
    *, group_bytes: int, block_quota: int | None = None
) -> bool:
    """The same for page_unified pools."""
    return group_bytes > 0


def transfer_hicache_one_layer(
    k_cache_dst: Tensor,
    v_cache_dst: Tensor,
    indices_dst: Tensor,
    k_cache_src: Tensor,
    v_cache_src: Tensor,
    indices_src: Tensor,
    *,
    element_dim: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> None:
    """Copies rows of the keys and the values of one layer. A row is `element_dim` elements, by
    default the last dimension; the rows of a view may be apart."""
    _one_layer(
        [("k_cache_dst", k_cache_dst), ("v_cache_dst", v_cache_dst)],
        indices_dst,
        [("k_cache_src", k_cache_src), ("v_cache_src", v_cache_src)],
        indices_src,
        element_dim,
    )


def transfer_hicache_one_layer_mla(
    cache_dst: Tensor,
    indices_dst: Tensor,
    cache_src: Tensor,
    indices_src: Tensor,
    *,
    element_dim: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> None:
    """`transfer_hicache_one_layer` for a cache that has one tensor instead of keys and values."""
    _one_layer(
        [("cache_dst", cache_dst)],
        indices_dst,
        [("cache_src", cache_src)],
        indices_src,
        element_dim,
    )


def transfer_hicache_all_layer(
    k_ptr_dst: Tensor | Sequence[Tensor],
    v_ptr_dst: Tensor | Sequence[Tensor],
    indices_dst: Tensor,
    k_ptr_src: Tensor | Sequence[Tensor],
    v_ptr_src: Tensor | Sequence[Tensor],
    indices_src: Tensor,
    *,
    kv_cache_src_stride_bytes: int,
    kv_cache_dst_stride_bytes: int,
    element_size: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> None:
    """Copies rows of the keys and the values of all layers, which have an address each. A row is
    `element_size` bytes, by default the distance of rows."""
    _all_layers(
        [("k_ptr_dst", k_ptr_dst), ("v_ptr_dst", v_ptr_dst)],
        indices_dst,
        ("kv_cache_dst_stride_bytes", kv_cache_dst_stride_bytes),
        [("k_ptr_src", k_ptr_src), ("v_ptr_src", v_ptr_src)],
        indices_src,
        ("kv_cache_src_stride_bytes", kv_cache_src_stride_bytes),
        element_size,
    )


def transfer_hicache_all_layer_mla(
    ptr_dst: Tensor | Sequence[Tensor],
    indices_dst: Tensor,
    ptr_src: Tensor | Sequence[Tensor],
    indices_src: Tensor,
    *,
    cache_src_stride_bytes: int,
    cache_dst_stride_bytes: int,
    element_size: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
    page_size: int | None = None,
) -> None:
    """`transfer_hicache_all_layer` for a cache that has one tensor instead of keys and values."""
    _all_layers(
        [("ptr_dst", ptr_dst)],
        indices_dst,
        ("cache_dst_stride_bytes", cache_dst_stride_bytes),
        [("ptr_src", ptr_src)],
        indices_src,
        ("cache_src_stride_bytes", cache_src_stride_bytes),
        element_size,
    )


def transfer_hicache_all_layer_staged_lf_pf(
    k_ptr_src: Tensor | Sequence[Tensor],
    v_ptr_src: Tensor | Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    staging_k: Tensor,
    staging_v: Tensor,
    dst_k: Tensor,
    dst_v: Tensor,
    *,
    page_size: int,
    element_size: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
) -> None:
    """Copies rows of all layers, which have an address each, to page-first pools of shape [token,
    layer, ...]. The rows go there directly: `staging_k` and `staging_v` are not used, and the
    indices need not be whole pages."""
    _to_page_first(
        [("k_ptr_src", k_ptr_src), ("v_ptr_src", v_ptr_src)],
        src_indices,
        dst_indices,
        [("dst_k", dst_k), ("dst_v", dst_v)],
        page_size,
        element_size,
    )


def transfer_hicache_all_layer_mla_staged_lf_pf(
    ptr_src: Tensor | Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    staging: Tensor,
    dst: Tensor,
    *,
    page_size: int,
    element_size: int | None = None,
    unroll: int | None = None,
    block_quota: int | None = None,
) -> None:
    """`transfer_hicache_all_layer_staged_lf_pf` for a cache that has one tensor instead of keys and
    values."""
    _to_page_first(
        [("ptr_src", ptr_src)], src_indices, dst_indices, [("dst", dst)], page_size, element_size
    )


def transfer_hicache_one_layer_page_unified_lf(
    k_cache_dst: Tensor,
    v_cache_dst: Tensor,
    src: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    *,
    block_quota: int | None = None,
) -> None:
    """Copies tokens of layer `layer_id` from a page_unified pool to that layer's tensors of shape
    [token, head, dim]. `src_indices` number the pool's tokens."""
    pool = _PageUnified("src", src, kinds=2)
    destinations = [("k_cache_dst", k_cache_dst), ("v_cache_dst", v_cache_dst)]
    _from_page_unified(destinations, pool, src_indices, dst_indices, layer_id)


def transfer_hicache_one_layer_mla_page_unified_lf(
    cache_dst: Tensor,
    src: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    *,
    block_quota: int | None = None,
) -> None:
    """`transfer_hicache_one_layer_page_unified_lf` for a cache that has one tensor instead of keys
    and values."""
    pool = _PageUnified("src", src, kinds=1)
    _from_page_unified([("cache_dst", cache_dst)], pool, src_indices, dst_indices, layer_id)


def transfer_hicache_all_layer_staged_lf_page_unified(
    k_ptr_src: Tensor | Sequence[Tensor],
    v_ptr_src: Tensor | Sequence[Tensor],
    src_pages: Tensor,
    dst_pages: Tensor,
    staging: Tensor,
    dst: Tensor,
) -> None:
    """Copies pages of all layers, which have an address each, to a page_unified pool. The tokens go
    there directly: `staging` is not used."""
    pool = _PageUnified("dst", dst, kinds=2)
    sources = [("k_ptr_src", k_ptr_src), ("v_ptr_src", v_ptr_src)]
    _to_page_unified(sources, pool, src_pages, dst_pages)


def transfer_hicache_all_layer_mla_staged_lf_page_unified(
    ptr_src: Tensor | Sequence[Tensor],
    src_pages: Tensor,
    dst_pages: Tensor,
    staging: Tensor,
    dst: Tensor,
) -> None:
    """`transfer_hicache_all_layer_staged_lf_page_unified` for a cache that has one tensor instead
    of keys and values."""
    pool = _PageUnified("dst", dst, kinds=1)
    _to_page_unified([("ptr_src", ptr_src)], pool, src_pages, dst_pages)


def _rows(name: str, tensor: Tensor, element_dim: int) -> Tensor:
    """A view of a tensor as rows of this many elements."""
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(
            f"`{name}` must be a torch.Tensor, not {type(tensor).__qualname__}"
        )
    try:
        return tensor.view(-1, element_dim)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"`{name}` of shape {tuple(tensor.shape)} cannot be viewed as rows of {element_dim} "
            f"elements: {error}"
        ) from None


def _one_layer(
    destinations: list[tuple[str, Tensor]],
    indices_dst: Tensor,
    sources: list[tuple[str, Tensor]],
    indices_src: Tensor,
    element_dim: int | None,
) -> None:
    name, first = destinations[0]
    if element_dim is None:
        _kv.checked_tensor(name, first, strided=True)
        element_dim = first.shape[-1] if first.dim() > 0 else 1
    element_dim = _kv.checked_number("element_dim", element_dim)
    sources = [(name, _rows(name, tensor, element_dim)) for name, tensor in sources]
    destinations = [(name, _rows(name, tensor, element_dim)) for name, tensor in destinations]
    item_size = element_dim * first.element_size()
    _kv.transfer(
        _kv.layer_first(sources, item_size),
        _kv.layer_first(destinations, item_size),
        item_size,
        indices_src,
        indices_dst,
    )


def _all_layers(
    destinations: list[tuple[str, Tensor | Sequence[Tensor]]],
    indices_dst: Tensor,
    dst_distance: tuple[str, int],
    sources: list[tuple[str, Tensor | Sequence[Tensor]]],
    indices_src: Tensor,
    src_distance: tuple[str, int],
    element_size: int | None,
) -> None:
    if element_size is None:
        _kv.expect_same("value without an `element_size`", [src_distance, dst_distance])
        element_size = dst_distance[1]
    num_layers = _number_of_layers(*destinations[0])
    _kv.transfer(
        _kv.layer_tensors(sources, element_size, num_layers, distance=src_distance),
        _kv.layer_tensors(destinations, element_size, num_layers, distance=dst_distance),
        element_size,
        indices_src,
        indices_dst,
    )


def _number_of_layers(name: str, layers: Tensor | Sequence[Tensor]) -> int:
    has_length = layers.dim() > 0 if isinstance(layers, Tensor) else isinstance(layers, Sequence)
    if not has_length or len(layers) == 0:
        raise InvalidArgumentError(f"`{name}` must have an address for each layer")
    return len(layers)


def _to_page_first(
    sources: list[tuple[str, Tensor | Sequence[Tensor]]],
    src_indices: Tensor,
    dst_indices: Tensor,
    pools: list[tuple[str, Tensor]],
    page_size: int,
    element_size: int | None,
) -> None:
    _kv.checked_number("page_size", page_size)
    num_layers = _number_of_layers(*sources[0])
    name, pool = pools[0]
    row_bytes = _kv.item_bytes(name, pool, 2)
    if pool.shape[1] != num_layers or element_size not in (None, row_bytes):
        raise InvalidArgumentError(
            f"`{name}` must have the shape [token, layer, ...] with {num_layers} layers and rows "
            f"of `element_size` = {element_size} bytes, not {tuple(pool.shape)} of {row_bytes}"
        )
    _kv.transfer(
        _kv.layer_tensors(sources, row_bytes, num_layers),
        _kv.page_first(
            pools, _kv.all_layers(num_layers), row_bytes, ("a token's size", num_layers * row_bytes)
        ),
        row_bytes,
        src_indices,
        dst_indices,
    )


class _PageUnified:
    """A pool of pages, of which each holds all layers of its tokens, by head groups."""

    def __init__(self, name: str, pool: Tensor, kinds: int) -> None:
        _kv.checked_tensor(name, pool)
        axes = (
            ["page", "layer", "token of page", "dim"]
            if kinds == 1
            else ["page", "head group", "layer", "2", "token of page", "head of group", "dim"]
        )
        if pool.dim() != len(axes) or (kinds == 2 and pool.shape[3] != 2) or 0 in pool.shape[1:]:
            raise InvalidArgumentError(
                f"`{name}` must have the shape [{', '.join(axes)}] with rows to copy, not "
                f"{tuple(pool.shape)}"
            )
        self.name, self.pool, self.kinds = name, pool, kinds
        self.groups = 1 if kinds == 1 else pool.shape[1]
        self.layers = pool.shape[1] if kinds == 1 else pool.shape[2]
        self.page_size = pool.shape[2] if kinds == 1 else pool.shape[4]
        token_bytes = pool.shape[1:].numel() * pool.element_size() // self.page_size
        self.group_bytes = token_bytes // (self.groups * self.layers * kinds)
        self.token_bytes = token_bytes

    def side(self, layers: range) -> _kv.Side:
        """These layers. Each kind, layer and group is a layer of the copy, in this order."""
        block_bytes = self.page_size * self.group_bytes
        pages = _kv.in_rows(
            [(self.name, [self.pool])],
            ("a token's size", self.token_bytes),
            [
                ((group * self.layers + layer) * self.kinds + kind) * block_bytes
                for kind in range(self.kinds)
                for layer in layers
                for group in range(self.groups)
            ],
            (self.page_size, self.page_size * self.token_bytes),
        )
        # Tokens are counted by their size in all layers, but their parts are closer.
        return pages._replace(stride_bytes=self.group_bytes)

    def groups_of_layer(self) -> tuple[int, list[int]]:
        """The size of a token in one layer that is not in pages, and the place of each group."""
        places = [group * self.group_bytes for group in range(self.groups)]
        return self.groups * self.group_bytes, places


def _from_page_unified(
    destinations: list[tuple[str, Tensor]],
    pool: _PageUnified,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
) -> None:
    layer = _kv.one_layer(layer_id)
    if layer.stop > pool.layers:
        raise InvalidArgumentError(
            f"`layer_id` is {layer.start}, but `{pool.name}` has {pool.layers} layers"
        )
    _kv.transfer(
        pool.side(layer),
        _kv.layer_first(destinations, *pool.groups_of_layer()),
        pool.group_bytes,
        src_indices,
        dst_indices,
    )


def _to_page_unified(
    sources: list[tuple[str, Tensor | Sequence[Tensor]]],
    pool: _PageUnified,
    src_pages: Tensor,
    dst_pages: Tensor,
) -> None:
    item_size, places = pool.groups_of_layer()
    _kv.transfer(
        _kv.layer_tensors(sources, item_size, pool.layers, places),
        pool.side(range(pool.layers)),
        pool.group_bytes,
        _tokens_of("src_pages", src_pages, pool.page_size),
        _tokens_of("dst_pages", dst_pages, pool.page_size),
    )


def _tokens_of(name: str, pages: Tensor, page_size: int) -> Tensor:
    """The indices of the tokens of pages, where the pages are. An index below 0 names no page."""
    pages = _kv.checked_indices(name, pages).to(torch.int64).unsqueeze(-1)
    tokens = pages * page_size + torch.arange(page_size, device=pages.device)
    return tokens.where(pages >= 0, -1).flatten()
