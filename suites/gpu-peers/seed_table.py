#!/usr/bin/env python3
"""Lays results out as the table of HierarchicalKV's pull request 251, with Forerun beside it.

    seed_table.py RESULTS.jsonl          of forerun-bench gpu-table --study seed --json --peer hkv-before --peer hkv

The columns of the pull request: find* before and after it, find, and the change. Units are its
B-KV/s (2^30 keys per second of the host's clock), at the loads that the results have. A figure that
the results lack is a dash.
"""

import json
import sys

BEFORE, AFTER = "hierarchicalkv-before", "hierarchicalkv"


def table(rows):
    """The lines of the table."""
    figures = {}
    for row in rows:
        if row["buckets"] != "1x128":
            continue
        lookup = row.get("lookup") or ""
        if row["engine"] in ("gpu", "cpu") and row["op"] == "find_ptr" and lookup != "by-load":
            continue  # the kernels that are only measured
        figures[row["engine"], row["op"], round(row["load"], 2)] = row["bkv_per_second_wall"]
    ours = "gpu" if any(engine == "gpu" for engine, _, _ in figures) else "cpu"

    def cell(engine, op, load):
        figure = figures.get((engine, op, load))
        return "-" if figure is None else f"{figure:.3f}"

    def change(before, after):
        if None in (before, after):
            return "-"
        return f"{after / before - 1:+.1%}"

    yield "| λ | find* before | find* after | find (ref) | Δ | Forerun find* | find | to after |"
    yield "|---|---|---|---|---|---|---|---|"
    for load in sorted({load for _, _, load in figures}):
        before = figures.get((BEFORE, "find_ptr", load))
        after = figures.get((AFTER, "find_ptr", load))
        cells = [
            f"{load:.2f}",
            cell(BEFORE, "find_ptr", load),
            cell(AFTER, "find_ptr", load),
            cell(AFTER, "find", load),
            change(before, after),
            cell(ours, "find_ptr", load),
            cell(ours, "find", load),
            change(after, figures.get((ours, "find_ptr", load))),
        ]
        yield f"| {' | '.join(cells)} |"


def main(path):
    with open(path) as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    print("\n".join(table(row for row in rows if "bkv_per_second_wall" in row)))


if __name__ == "__main__":
    main(*sys.argv[1:])
