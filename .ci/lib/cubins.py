"""Checks each compiled kernel against the limits in the kernels' lists.

    cubins.py <folder of *.list> <folder of sm_*.log and, if there is a disassembler, sm_*.sass>

A line of a list is KERNEL(name, ..., threads, registers), or KERNEL90(...) for kernels that need
sm_90 or later.

Registers and spills come from ptxas's logs. The disassembly shows loads in a row: some kernels
issue several loads before their first store so that the requests overlap. A compiler may delay a
load until after a store to save registers, which would serialize them without a warning.
"""

import pathlib
import re
import sys


def listed(folder):
    """{name: (first architecture, threads, maximum of registers, loads in a row)}"""
    kernels = {}
    for path in sorted(folder.glob("*.list")):
        for kind, fields in re.findall(r"^(KERNEL|KERNEL90)\((.*)\)$", path.read_text(), re.M):
            name, *rest = [field.strip() for field in fields.split(",")]
            numbers = [int(field) for field in rest]
            kernels[name] = (
                90 if kind == "KERNEL90" else 80,
                *numbers[-2:],
                loads_expected(name, numbers),
            )
    return kernels


def compiled(log):
    """{name: (registers, spilled bytes, stack bytes)}"""
    kernels = {}
    name = stack = spilled = None
    for line in log.read_text().splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
        elif found := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            stack, spilled = int(found[1]), int(found[2]) + int(found[3])
        elif found := re.search(r"Used (\d+) registers", line):
            kernels[name] = (int(found[1]), spilled, stack)
    return kernels


def loads_in_a_row(sass):
    """{name: the longest sequence of data loads of one width that a store of that width follows}"""
    kernels = {}
    for section in re.split(r"\.section\s+\.text\.", sass.read_text())[1:]:
        name = re.match(r"\w+", section)[0]
        longest = run = 0
        width = None
        for op, hints, bits in re.findall(
            r"\b(LDG|STG)\.E(\.NA)?((?:\.U8|\.64|\.128)?)\b", section
        ):
            if op == "STG":
                if width is not None and bits == width[1]:
                    longest = max(longest, run)
                run, width = 0, None
            elif (hints, bits) == width:
                run += 1
            else:
                run, width = 1, (hints, bits)
        kernels[name] = longest
    return kernels


def loads_expected(name, fields):
    """For a row copy, whose fields are version, unit, rows, ... as in gather.list."""
    if not name.startswith("gather_"):
        return 0
    version, rows = fields[0], fields[2]
    return {3: 4, 4: 4, 5: 2 * rows}.get(version, 0)


def main(lists, logs):
    allowed = listed(pathlib.Path(lists))
    code = {
        int(sass.stem[3:]): loads_in_a_row(sass) for sass in pathlib.Path(logs).glob("sm_*.sass")
    }
    made = {int(log.stem[3:]): compiled(log) for log in sorted(pathlib.Path(logs).glob("sm_*.log"))}
    faults = []
    print(
        f"{'kernel':<24}{'threads':>8}{'cap':>6}" + "".join(f"{'sm_' + str(sm):>8}" for sm in made)
    )
    for name, (first, threads, cap, loads) in allowed.items():
        if cap * threads > 65536:
            faults.append(
                f"{name}: {cap} registers for each of {threads} threads are more than a "
                "multiprocessor has"
            )
        cells = ""
        for sm, kernels in made.items():
            if sm < first:
                cells += f"{'-':>8}"
                continue
            if name not in kernels:
                faults.append(f"{name} is listed but missing from sm_{sm}")
                continue
            registers, spilled, stack = kernels[name]
            cells += f"{registers:>8}"
            if spilled or stack:
                faults.append(f"{name}, sm_{sm}: {spilled} bytes spilled, a stack of {stack} bytes")
            if sm in code and code[sm][name] < loads:
                faults.append(
                    f"{name}, sm_{sm}: {code[sm][name]} loads before a store, {loads} expected"
                )
            if registers > cap:
                faults.append(f"{name}, sm_{sm}: {registers} registers, {cap} allowed")
        print(f"{name:<24}{threads:>8}{cap:>6}{cells}")
    for sm, kernels in made.items():
        faults += [f"{name}, sm_{sm}, is in no list" for name in kernels if name not in allowed]
    if not made or not all(made.values()):
        faults.append("the logs of ptxas name no kernel")
    print(
        "loads before stores checked in: "
        f"{', '.join(f'sm_{sm}' for sm in sorted(code)) or 'none: nvdisasm is missing'}"
    )
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
