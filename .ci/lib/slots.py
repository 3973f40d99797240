"""Counts the instructions that a warp issues per key in the hash table's kernels, and predicts
times.

    slots.py <folder of the kernels' sources> <disassembly with line numbers: nvdisasm -c -gi>
    slots.py --report ...       the same for sources of any age: nothing is a fault

A warp takes 32 keys at a time. The count for one key is 1/32 of the instructions of the loop's
body, each counted once. The parts of a kernel have names, in comments at the ends of source lines:
`// slots: NAME`. What a line calls belongs to it, and an instruction may belong to several parts.
It counts if the case has all of them, as often as the one that runs most:

    find, 0.5    narrow, one half of a row of 128 slots; row for narrower buckets
    find, 1.0    row, once per candidate
    assign       row, once per candidate
    insert, 0.5  row and free, once
    insert, 1.0  row and free, once per candidate; victim, some keys of each tile at a time (TURNS)
    pooled       row, as find, and f32: rows of 32 bytes, eight at a time
    thread       a thread per key: home and spill, a turn for each 16 slots, one at load 0.5
    scan, clear  per slot, and per bucket of 128 slots
    some         inside narrow and row: some keys of each tile; again if the tile has more lanes
    units        row copies in units of 16 bytes; `words`, the other units, do not count
    missed, formats and longer    other cases of find_missed and of pooled rows: not counted
    row copies, scores, pins and the like of writers are counted once, as if each key needed all

What has no name always runs. Code for a warp whose lanes are not together is not counted. The
counts are upper limits: they have all steps of a part, even if no key of the warp needs them. Other
loops count once. The first column has every instruction once. A hyphen stands where no instruction
has a name of the case, as in older sources.

The prediction is for 2^20 keys in a table of 2^27 slots and rows of 32 bytes, on an H200. It has
four constants, all from the run of 2026-11-26 (docs/results/2026-11-26-nvidia-h200):

    ACCESS_US    0.71: a step of two dependent accesses, which a writer's tile then made for each of
                 its keys, cost a call 22 us (`assign`: 300 us with four such steps, 387 with eight)
                 while 67,600 keys, those of the warps that fit, were in flight
    WRITE        19 other dependent accesses of a write: what is left of these calls
    LOOKUP_US    35: what a lookup takes beside its keys (`find_ptr`: 93 us for 2^20, 266 for 2^22)
    REQUESTS     37 G random requests of up to 64 bytes per second, and 30 G of 128 (gpu-roofline)

A call takes its rounds times the accesses of a round, or the time to issue its instructions, or
that of its requests, whichever is longest. Rounds follow from the registers that the kernel's list
allows. Calls of that run deviate by up to a third. For pooled rows, a thread per key, scan and
clear the time is that of the instructions alone. The model knows nothing of locks that collide, so
compare kernels by it, not devices.
"""

import collections
import pathlib
import re
import sys

KEYS = 32
PARTS = set(
    "narrow row some free victim missed thread home spill units words f32 rows formats longer "
    "export erase chunk".split()
)
# What runs again within a part.
LOOPS = {"some", "rows"}
# Per width: the turns in which a warp chooses 32 victims. A tile takes four keys at a time, and two
# of rows that need two loads of a lane (victim.cuh).
TURNS = {16: 2, 32: 4, 64: 8, 128: 16}
# Rows that a tile requests at a time.
IN_FLIGHT = {"table_find_slots": 4, "table_find_rows": 2, "table_find_pooled": 2, "table_write": 4}
FIND = {"0.5": {"narrow": (1, 1)}, "1.0": {"row": (1, 2)}}
# Per kernel and case: the parts, each with the times it runs for one and for two candidates.
CASES = {
    "table_find_slots": FIND,
    "table_find_rows": {load: {**parts, "units": (1, 1)} for load, parts in FIND.items()},
    "table_find_pooled": {load: {**parts, "f32": (1, 1)} for load, parts in FIND.items()},
    "table_find_thread": {
        "0.5": {"home": (1, 1)},
        "1.0": {"home": (8, 8), "spill": (0, 8)},
    },
    "table_write": {
        "assign": {"row": (1, 2), "units": (2, 2)},
        "insert 0.5": {"row": (1, 1), "free": (1, 1), "units": (2, 2)},
        "insert 1.0": {"row": (1, 2), "free": (1, 2), "victim": TURNS, "units": (2, 2)},
    },
    "table_scan": {"count": {}, "export": {"export": (1, 1)}, "erase": {"erase": (1, 1)}},
    "table_clear": {"clear": {"chunk": (8, 8)}},
}
# The kernels that must have these parts, and the limits of the first one.
CHECKED = "table_find_slots", "table_write"
NEEDED = {"narrow", "row", "some", "free", "victim"}
LIMITS = {"0.5": 30, "1.0": 50}

CALL = 1 << 20
MULTIPROCESSORS, SCHEDULERS, CLOCK_MHZ, REGISTERS = 132, 4, 1980, 1 << 16
ACCESS_US, WRITE, LOOKUP_US = 0.71, 19, 35
REQUESTS_PER_US = {64: 37_000, 128: 30_000}
HIT_RATE = 0.6


def named_lines(folder):
    """{(file name, line): part}"""
    lines = {}
    for path in sorted(folder.rglob("*.cuh")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := re.search(r"// slots: (\w+)$", line):
                lines[path.name, number] = found[1]
    return lines


def listed(folder):
    """{name: (width, threads, registers)} of the table's kernels"""
    text = (folder / "table.list").read_text()
    kernels = {}
    for fields in re.findall(r"^KERNEL\((.*)\)$", text, re.M):
        name, _, *numbers = fields.split(", ")
        kernels[name] = tuple(int(number) for number in numbers)
    return kernels


def together(section):
    """The lines of a kernel up to the code for a warp whose lanes are not together, and a line that
    jumps beyond."""
    lines = section.splitlines()
    detours = set(re.findall(r"BRA\.DIV .*?`\((\S+)\)", section))
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L_")}
    end = min((labels[label] for label in detours), default=len(lines))
    for line in lines[:end]:
        jump = re.search(r"\bBRA (?!\.DIV).*?`\((\S+)\)", line)
        if jump and labels[jump[1]] >= end:
            return lines[:end], line
    return lines[:end], None


def parts_of(section, named):
    """{the names of the parts: instructions}"""
    counts = collections.Counter()
    frames = []
    fresh = True
    for line in section:
        if found := re.search(r'//## File ".*?([^/"]+)", line (\d+)', line):
            if fresh:
                frames, fresh = [], False
            frames.append((found[1], int(found[2])))
        elif re.search(r"/\*[0-9a-f]{4,}\*/\s+[^/\s]", line):
            fresh = True
            counts[frozenset(named[frame] for frame in frames if frame in named)] += 1
    return counts


def times_of(part, times, width, candidates):
    return times[width] if part == "victim" else times[candidates - 1]


def turns_of(kind, part, width):
    """The turns in which a tile matches its keys."""
    lanes = 4 if part == "narrow" else width // 16
    return max(1, lanes // IN_FLIGHT.get(kind, 1))


def slots_of(kind, parts, counts, width, candidates):
    """Instructions per key."""
    times = {part: times_of(part, times, width, candidates) for part, times in parts.items()}
    slots = 0
    for names, instructions in counts.items():
        runs = [times.get(name, 0) for name in names - LOOPS]
        if 0 in runs:
            continue
        count = max(runs, default=1)
        if "some" in names:
            count *= turns_of(kind, "narrow" if "narrow" in names else "row", width)
        if "rows" in names:
            count *= KEYS // 8
        slots += instructions * count
    return slots / KEYS


def tries_of(parts, candidates):
    """The buckets in which a key is searched."""
    return parts["row"][candidates - 1] if "row" in parts else 1


def accesses_of(kind, parts, width, candidates):
    """Dependent accesses of a warp's round, or nothing if the model does not have the kernel."""
    tries = tries_of(parts, candidates)
    if kind == "table_find_slots":
        # A lookup's digests are in L2 by then. Another candidate: its word, digests, keys.
        return 2 + 3 * (tries - 1)
    if kind == "table_find_rows":
        # The word before and after, and the row.
        return 5 + 3 * (tries - 1)
    if kind == "table_write":
        part = "narrow" if "narrow" in parts else "row"
        found = tries * (turns_of(kind, part, width) + 1)
        return WRITE + found + (TURNS[width] * candidates if "victim" in parts else 0)
    return None


def requests_us(kind, parts, width, candidates):
    """The time of a call's requests for digests, keys, rows, scores and words."""
    tries = tries_of(parts, candidates)
    short = 1 / REQUESTS_PER_US[64]
    digests = short if width <= 64 or "narrow" in parts else 1 / REQUESTS_PER_US[128]
    of_key = tries * digests + (HIT_RATE + tries * width / 254) * short
    if kind == "table_find_rows":
        of_key += HIT_RATE * short
    if kind == "table_write":
        of_key += 2 * short
    if "victim" in parts:
        of_key += candidates * (width * 8 / 128) / REQUESTS_PER_US[128]
    return CALL * of_key


def predicted_us(kind, parts, slots, width, candidates, threads, registers):
    issue = slots * CALL / (MULTIPROCESSORS * SCHEDULERS * CLOCK_MHZ)
    accesses = accesses_of(kind, parts, width, candidates)
    if accesses is None:
        return issue
    resident = REGISTERS // (registers * threads) * threads * MULTIPROCESSORS
    waits = CALL / resident * accesses * ACCESS_US
    if kind != "table_write":
        waits += LOOKUP_US
    return max(waits, issue, requests_us(kind, parts, width, candidates))


def show(kind, sections, named, kernels, is_report):
    """Prints a line per kernel, and returns the faults."""
    faults = []
    cases = CASES[kind]
    columns = [(case, candidates) for case in cases for candidates in (1, 2)]
    if kind in ("table_scan", "table_clear"):
        columns = [(case, 1) for case in cases]
    titles = "".join(f"{f'{candidates} {case}':>16}" for case, candidates in columns)
    print(f"{'slots per key / us':<22}{'once':>8}{titles}")
    for name, section in sections.items():
        width, threads, registers = kernels[name]
        lines, jump = together(section)
        if jump and kind in CHECKED:
            faults.append(f"{name} jumps to code that is not counted: {jump.strip()}")
        counts = parts_of(lines, named)
        has = {part for names in counts for part in names}
        cells = f"{sum(counts.values()) / KEYS:>8.1f}"
        for case, candidates in columns:
            parts = cases[case]
            if "narrow" in parts and "narrow" not in has:
                parts = {"row" if part == "narrow" else part: n for part, n in parts.items()}
            slots = slots_of(kind, parts, counts, width, candidates)
            us = predicted_us(kind, parts, slots, width, candidates, threads, registers)
            missing = (set(parts) | ({"some"} if kind in CHECKED else set())) - has
            cells += f"{f'{slots:.1f} / {us:.0f}' if not missing else '-':>16}"
            missing &= NEEDED
            if missing and kind in CHECKED:
                faults.append(f"{name}, {case}: no instruction is of {', '.join(sorted(missing))}")
            if kind == "table_find_slots" and slots > LIMITS[case]:
                faults.append(
                    f"{name}, {case}: {slots:.1f} slots per key, {LIMITS[case]} allowed"
                )
        print(f"{name:<22}{cells}")
    return [] if is_report else faults


def main(folder, disassembly, is_report):
    folder = pathlib.Path(folder)
    named, kernels = named_lines(folder), listed(folder)
    faults = [
        f"{file}:{line}: no part is called {part}"
        for (file, line), part in named.items()
        if part not in PARTS and not is_report
    ]
    sections = {kind: {} for kind in CASES}
    text = pathlib.Path(disassembly).read_text()
    for section in re.split(r"\.section\s+\.text\.", text)[1:]:
        name = re.match(r"\w+", section)[0]
        kind = re.sub(r"_w\d+$", "", name)
        # Older sources have kernels of other kinds.
        if name in kernels and kind in sections:
            sections[kind][name] = section
    left = set(kernels) - {name for found in sections.values() for name in found}
    faults += [f"{name} is not in the disassembly" for name in sorted(left) if not is_report]
    for kind, found in sections.items():
        found = dict(sorted(found.items(), key=lambda item: kernels[item[0]][0]))
        faults += show(kind, found, named, kernels, is_report)
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults and not is_report else 0


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--report"]
    sys.exit(main(*given, is_report="--report" in sys.argv))
