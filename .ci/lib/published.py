"""Prints the names of the published crates, dependencies first; reads `cargo metadata --no-deps`
from standard input.

Ends with an error where a published crate lacks metadata, breaks a registry's limit, or depends on
a crate that is not published.
"""

import json
import sys
from pathlib import Path

packages = json.load(sys.stdin)["packages"]
ours = {package["name"]: package for package in packages}
published = {name: package for name, package in ours.items() if package["publish"] != []}
faults = []

for name, package in published.items():
    for field in (
        "description",
        "license",
        "documentation",
        "readme",
        "rust_version",
        "authors",
        "keywords",
        "categories",
    ):
        if not package[field]:
            faults.append(f"{name}: no {field}")
    if len(package["keywords"]) > 5 or any(len(word) > 20 for word in package["keywords"]):
        faults.append(f"{name}: at most 5 keywords of at most 20 characters")
    if len(package["categories"]) > 5:
        faults.append(f"{name}: at most 5 categories")
    folder = Path(package["manifest_path"]).parent
    for file in ("README.md", "LICENSE"):
        if not (folder / file).is_file():
            faults.append(f"{name}: no {file}")
    for dependency in package["dependencies"]:
        # A path without a version is not a dependency that a registry knows. Development
        # dependencies may lack it.
        if dependency.get("path") and dependency["kind"] != "dev":
            if dependency["req"] == "*":
                faults.append(f"{name}: {dependency['name']} has a path and no version")
            if dependency["name"] not in published:
                faults.append(f"{name}: {dependency['name']} is not published")

if len({package["version"] for package in published.values()}) != 1:
    faults.append("the published crates differ in version")
if faults:
    sys.exit("\n".join(faults))

done = set()
while len(done) < len(published):
    ready = [
        name
        for name, package in published.items()
        if name not in done
        and all(
            d["name"] in done
            for d in package["dependencies"]
            if d["name"] in published and d["kind"] != "dev"
        )
    ]
    if not ready:
        sys.exit("the published crates depend on each other in a circle")
    for name in sorted(ready):
        print(name)
        done.add(name)
