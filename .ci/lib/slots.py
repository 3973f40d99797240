"""Counts the instructions that a warp issues per key in the kernels that find slots.

    slots.py <folder of the kernels' sources> <disassembly with line numbers: nvdisasm -c -gi>

A warp takes 32 keys at a time. The count for one key is 1/32 of the instructions of the loop's
body, each counted once. The parts of a search have names, in comments at the ends of source lines:
`// slots: NAME`. An instruction belongs to the innermost named line from which it was inlined, so
what a line calls belongs to it. Which parts run depends on the table:

    load 0.5   narrow; row for buckets of 32 slots and less, which have no narrow part
    load 1.0   row, once per candidate
    some       inside these: four keys of each tile, so twice per row if a tile has eight lanes
    second     a lane's second equal digest: counted with the part that it is in
    missed     only find_missed needs it: not counted

What has no name always runs. Code for a warp whose lanes are not together is not counted. The
counts are upper limits: they have all steps of a part, even if no key of the warp needs them. A
loop over the slots of a full row would not count, so the kernels that have one (a thread per key,
HierarchicalKV's pipeline) are not counted here. Lookups of rows search in the same way; how often
their loops over a row's units turn depends on the row.
"""

import collections
import pathlib
import re
import sys

KEYS = 32
LIMITS = {"0.5": 30, "1.0": 50}
PARTS = {"narrow", "row", "some", "second", "missed"}


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
            sys.exit(f"a kernel that finds slots jumps to code that is not counted: {line}")
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
        names = set(names)
        if part in names or (part is None and not names):
            instructions += n * (turns if "some" in names else 1)
    return instructions / KEYS


def main(folder, disassembly):
    lines = named_lines(pathlib.Path(folder))
    text = pathlib.Path(disassembly).read_text()
    sections = {
        int(name[1]): section
        for section in re.split(r"\.section\s+\.text\.", text)[1:]
        if (name := re.match(r"table_find_slots_w(\d+)", section))
    }
    faults = []
    titles = "".join(f"{f'{c} at {load}':>10}" for load in LIMITS for c in "12")
    print(f"{'issue slots per key':<24}{titles}")
    for width, section in sorted(sections.items()):
        name = f"table_find_slots_w{width}"
        counts = parts_of(section, lines)
        has = {part for names in counts for part in names}
        cells = ""
        for load, limit in LIMITS.items():
            for candidates in (1, 2):
                round_of = "narrow" if load == "0.5" and "narrow" in has else "row"
                rows = candidates if load == "1.0" else 1
                turns = max(1, width // 64) if round_of == "row" else 1
                found = slots_in(counts, None, 1) + rows * slots_in(counts, round_of, turns)
                cells += f"{found:>10.1f}"
                if found > limit:
                    faults.append(
                        f"{name}, load {load}: {found:.1f} slots per key, {limit} allowed"
                    )
        print(f"{name:<24}{cells}")
        missing = {"row", "some", "second", "missed"} - has
        if missing:
            faults.append(f"{name}: no instruction belongs to {', '.join(sorted(missing))}")
    if len(sections) != 4:
        faults.append(f"the disassembly has {len(sections)} kernels that find slots, not 4")
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
