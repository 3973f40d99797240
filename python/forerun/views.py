"""Views of the keys, the values and the entries of a store or a cache.

They are to a `Db`, a `Keyspace`, a `Snapshot` and a `Cache` what the views of a dict are to the
dict: they hold no entries, and show what the store or the cache contains when they are used. Each
iterator over a view of a store sees the store as of the moment when the iterator was made.

    store.items(prefix="CH/")    ItemsView(store, range)    iter, reversed    one pass over the range
                                                            len               counts the range
                                                            in                one lookup
"""

from collections import abc
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

__all__ = ["ItemsView", "KeysView", "Range", "ValuesView"]


class Range(NamedTuple):
    """The entries that a view shows, and their order."""

    start: bytes | None = None
    end: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False

    def has(self, key: bytes) -> bool:
        """Whether a key lies within the range."""
        return (
            (self.start is None or self.start <= key)
            and (self.end is None or key < self.end)
            and (self.prefix is None or key.startswith(self.prefix))
        )

    def reversed(self) -> "Range":
        """The same entries in the opposite order."""
        return self._replace(reverse=not self.reverse)


class _Source(Protocol):
    """A store or a cache."""

    def get(self, key: Any, /) -> bytes | None: ...
    def _scan(self, part: str, range: Range) -> Iterator[Any]: ...
    def _count(self, range: Range) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...


class _View:
    """What the three views share."""

    _part = ""
    _mapping: _Source
    _range: Range

    def __init__(self, mapping: _Source, range: Range) -> None:
        self._mapping = mapping
        self._range = range

    def __len__(self) -> int:
        return self._mapping._count(self._range)

    def __iter__(self) -> Iterator[Any]:
        return self._mapping._scan(self._part, self._range)

    def __reversed__(self) -> Iterator[Any]:
        return self._mapping._scan(self._part, self._range.reversed())

    def __repr__(self) -> str:
        shown = [repr(self._mapping)]
        for name, value in self._range._asdict().items():
            if value is not None and value is not False:
                shown.append(f"{name}={value!r}")
        return f"forerun.views.{type(self).__name__}({', '.join(shown)})"

    def _has_key(self, key: object) -> bool:
        return key in self._mapping and self._range.has(_bytes_of(key))


def _bytes_of(key: Any) -> bytes:
    """The bytes of a key that a store accepted."""
    return key.encode() if isinstance(key, str) else bytes(key)


class KeysView(_View, abc.KeysView[bytes]):
    """The keys, as a set in the order of the store."""

    _part = "keys"

    def __contains__(self, key: object) -> bool:
        return self._has_key(key)


class ValuesView(_View, abc.ValuesView[bytes]):
    """The values. `in` compares with each of them."""

    _part = "values"

    def __contains__(self, value: object) -> bool:
        return any(value == other for other in self)


class ItemsView(_View, abc.ItemsView[bytes, bytes]):
    """The entries, as a set of pairs in the order of the store."""

    _part = "items"

    def __contains__(self, item: object) -> bool:
        if not (isinstance(item, tuple) and len(item) == 2):
            return False
        key, value = item
        return self._has_key(key) and self._mapping.get(key) == value
