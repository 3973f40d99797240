"""Checks which glibc a wheel's extension module needs: wheel_symbols.py WHEEL manylinux_2_17.

Reads the versions that the module's dynamic symbols ask for, and the libraries that it links.
"""

import io
import re
import sys
import zipfile

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
}
LIBRARIES |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

wheel, tag = sys.argv[1:]
promised = tuple(int(part) for part in re.fullmatch(r"manylinux_(\d+)_(\d+)", tag).groups())

with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    modules = [name for name in names if name.endswith(".so")]
    if modules != ["forerun/_forerun.abi3.so"]:
        sys.exit(f"the wheel's modules are {modules}")
    for needed in ("forerun/py.typed", "forerun/_forerun.pyi", "forerun/torch.py"):
        if needed not in names:
            sys.exit(f"the wheel has no {needed}")
    if not any(name.endswith("/LICENSE") for name in names):
        sys.exit("the wheel has no licence")
    foreign = [
        name for name in names if not name.startswith("forerun/") and ".dist-info/" not in name
    ]
    if foreign:
        sys.exit(f"the wheel should not hold {foreign}")
    elf = ELFFile(io.BytesIO(archive.read(modules[0])))

libraries = {
    tag.needed
    for tag in elf.get_section_by_name(".dynamic").iter_tags()
    if tag.entry.d_tag == "DT_NEEDED"
}
if libraries - LIBRARIES:
    sys.exit(f"the module links {sorted(libraries - LIBRARIES)}")
newest = (0, 0)
for section in elf.iter_sections():
    if isinstance(section, GNUVerNeedSection):
        for _, versions in section.iter_versions():
            for version in versions:
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
                if match:
                    newest = max(newest, (int(match[1]), int(match[2])))
print(f"glibc {newest[0]}.{newest[1]} or later; links {', '.join(sorted(libraries))}")
if newest > promised:
    sys.exit(f"the module needs a newer glibc than {tag} promises")
