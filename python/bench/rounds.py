"""Rounds in which every case has a turn, so that other load on the machine affects all alike."""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Case:
    """What is timed: `turn(seconds)` works for about that long and returns its work per second."""

    name: str
    turn: Callable[[float], float]
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Progress:
    """One line on standard error with the current activity, if that is a terminal."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._last = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if self.shown and now - self._last > 0.1:
            self._last = now
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def measure(cases: list[Case], rounds: int, seconds: float, progress: Progress) -> None:
    """Times every case once per round. Each round starts with another case."""
    was_enabled = gc.isenabled()
    gc.disable()  # a collection belongs to no single case
    try:
        for nth in range(rounds):
            first = nth % len(cases)
            for case in cases[first:] + cases[:first]:
                progress(f"round {nth + 1} of {rounds}: {case.name}")
                case.rates.append(case.turn(seconds))
            gc.collect()
    finally:
        if was_enabled:
            gc.enable()
        progress.clear()


def ratio(one: Case, other: Case) -> float:
    """How many times as fast `one` is: the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(one.rates, other.rates))


def short(figure: float) -> str:
    """Three digits and a unit."""
    for unit in ("", " k", " M", " G"):
        if abs(figure) < 999.5 or unit == " G":
            return f"{figure:.3g}{unit}"
        figure /= 1000
    return ""


def count(text: str) -> int:
    """Reads 3000, 64k or 10M."""
    scale = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    number = float(text[:-1] if scale > 1 else text) * scale
    if number < 1 or number != int(number):
        raise ValueError(f"{text!r} is not a count")
    return int(number)


def print_table(headings: list[str], lines: list[list[str]]) -> None:
    """Prints columns at their natural width, with numbers aligned to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(headings, *lines)]
    for cells in [headings, *lines]:
        print(
            "  ".join(
                cell.rjust(width) if nth else cell.ljust(width)
                for nth, (cell, width) in enumerate(zip(cells, widths))
            )
        )
