"""Names in directories that survive a power failure."""

from __future__ import annotations

import os

__all__ = ["sync_directory"]


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
