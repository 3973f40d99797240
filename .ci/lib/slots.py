"""Counts the instructions that a warp issues per key in the kernels that find slots and that write.

    slots.py <folder of the kernels' sources> <disassembly with line numbers: nvdisasm -c -gi>

A warp takes 32 keys at a time. The count for one key is 1/32 of the instructions of the loop's
body, each counted once. The parts of a search have names, in comments at the ends of source lines:
`// slots: NAME`. An instruction belongs to the innermost named line from which it was inlined, so
what a line calls belongs to it. Which parts run depends on the table:

    find, 0.5    narrow, one half of a row of 128 slots; row for narrower buckets
    find, 1.0    row, once per candidate
    assign       row, once per candidate
    insert, 0.5  row and free, once
    insert, 1.0  row and free, once per candidate; victim, a turn of four keys: eight times
    some         inside narrow and row: four keys of each tile, so twice per row if a tile has eight
                 lanes
    missed       only find_missed needs it: not counted
    thread       a thread per key, not counted: a loop over the slots of a row
    row copies, scores, pins and the like of writers are counted once, as if each key needed all

What has no name always runs. Code for a warp whose lanes are not together is not counted. The
counts are upper limits: they have all steps of a part, even if no key of the warp needs them. A
loop counts once, so the kernels that have one per key (a thread per key, HierarchicalKV's pipeline)
are not counted here. Lookups of rows search in the same way; how often their loops over a row's
units turn depends on the row.
"""

import collections
import pathlib
import re
import sys

KEYS = 32
# Per kernel and case: the parts, each with the times it runs for one and for two candidates.
CASES = {
    "table_find_slots": {
        "0.5": (("narrow", (1, 1)),),
        "1.0": (("row", (1, 2)),),
    },
    "table_write": {
        "assign": (("row", (1, 2)),),
        "insert 0.5": (("row", (1, 1)), ("free", (1, 1))),
        "insert 1.0": (("row", (1, 2)), ("free", (1, 2)), ("victim", (8, 8))),
    },
}
LIMITS = {"0.5": 30, "1.0": 50}
PARTS = {"narrow", "row", "some", "free", "victim", "missed", "thread"}


def named_lines(folder):
    """{(file name, line): part}"""
    lines = {}
    for path in sorted(folder.rglob("*.cuh")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := re.search(r"// slots: (\w+)$", line):
                if found[1] not in PARTS:
                    sys.exit(f"{path}:{number}: no part is called {found[1]}")
                lines[path.name, number] = found[1]
    return lines


def together(section):
    """The lines of a kernel up to the code for a warp whose lanes are not together."""
    lines = section.splitlines()
    detours = set(re.findall(r"BRA\.DIV .*?`\((\S+)\)", section))
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L_")}
    end = min((labels[label] for label in detours), default=len(lines))
    for line in lines[:end]:
        jump = re.search(r"\bBRA (?!\.DIV).*?`\((\S+)\)", line)
        if jump and labels[jump[1]] >= end:
            sys.exit(f"a kernel jumps to code that is not counted: {line}")
    return lines[:end]


def parts_of(section, lines):
    """{part: instructions}, where a part is a pair: that of the round, and `second` or nothing"""
    counts = collections.Counter()
    frames = []
    fresh = True
    for line in together(section):
        if found := re.search(r'//## File ".*?([^/"]+)", line (\d+)', line):
            if fresh:
                frames, fresh = [], False
            frames.append((found[1], int(found[2])))
        elif re.search(r"/\*[0-9a-f]{4,}\*/\s+[^/\s]", line):
            fresh = True
            names = [lines[frame] for frame in frames if frame in lines]
            counts[tuple(sorted(set(names)))] += 1
    return counts


def slots_in(counts, part, turns):
    """Instructions per key of a part, or of what has no name."""
    instructions = 0
    for names, n in counts.items():
        rest = set(names) - {"some"}
        # What is free is noted within the search of a row, too.
        mine = rest == {part} or rest == {part, "row"} if part else not rest
        if mine:
            instructions += n * (turns if "some" in names else 1)
    return instructions / KEYS


def show(kind, sections, lines):
    """Prints a line per width, and returns what exceeds the limits."""
    faults = []
    cases = CASES[kind]
    titles = "".join(f"{f'{c} {case}':>15}" for case in cases for c in "12")
    print(f"{'issue slots per key':<22}{titles}")
    for width, section in sorted(sections.items()):
        counts = parts_of(section, lines)
        has = {part for names in counts for part in names}
        turns = max(1, width // 64)
        cells = ""
        for case, parts in cases.items():
            for candidates in (1, 2):
                found = slots_in(counts, None, 1)
                for part, times in parts:
                    part = "row" if part == "narrow" and "narrow" not in has else part
                    inner = 1 if part == "narrow" else turns
                    found += times[candidates - 1] * slots_in(counts, part, inner)
                cells += f"{found:>15.1f}"
                if found > LIMITS.get(case, found):
                    faults.append(
                        f"{kind}_w{width}, {case}: {found:.1f} slots per key, "
                        f"{LIMITS[case]} allowed"
                    )
        print(f"{f'{kind}_w{width}':<22}{cells}")
        needed = {part for parts in cases.values() for part, _ in parts} | {"some"}
        missing = needed - has - {"narrow"}
        if missing:
            faults.append(f"{kind}_w{width}: no instruction is of {', '.join(sorted(missing))}")
    if len(sections) != 4:
        faults.append(f"the disassembly has {len(sections)} kernels {kind}, not 4")
    return faults


def main(folder, disassembly):
    lines = named_lines(pathlib.Path(folder))
    text = pathlib.Path(disassembly).read_text()
    sections = {kind: {} for kind in CASES}
    for section in re.split(r"\.section\s+\.text\.", text)[1:]:
        name = re.match(r"(\w+?)_w(\d+)\b", section)
        if name and name[1] in sections:
            sections[name[1]][int(name[2])] = section
    faults = [fault for kind in CASES for fault in show(kind, sections[kind], lines)]
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
