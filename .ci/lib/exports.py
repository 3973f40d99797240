"""Checks that the crate `forerun` exports every type and trait that its public signatures name, and
that no two of its types share a name.

    exports.py <folder of rustdoc's JSON, one file for each crate of the workspace>

A signature may also name items of the standard library and of the crates in PUBLIC_DEPENDENCIES.
The JSON must include private and hidden items, because a re-exported type may be defined in a
private module.
"""

import json
import pathlib
import sys

FACADE = "forerun"

# The version of rustdoc's JSON that this script reads, which Rust 1.95 writes.
FORMAT_VERSION = 57

# The exit status for any other version.
OTHER_FORMAT = 3

STANDARD = {"alloc", "core", "std"}

# Other crates whose types and traits users see, and why.
PUBLIC_DEPENDENCIES = {
    "serde_core": "defines the traits of serde, which the feature `serde` implements",
    "zerocopy": "rows of a table implement its traits; `forerun::table::zerocopy` is this crate",
}


# The name of traits that only their crate can implement. No user names them.
SEAL = "Sealed"


# Names that each crate gives to a type of its own, as the modules of the standard library do.
SHARED_NAMES = {"Error", "Result"}


class Crate:
    """The items of one crate."""

    def __init__(self, path):
        self.json = json.loads(path.read_text())
        version = self.json["format_version"]
        if version != FORMAT_VERSION:
            print(f"rustdoc writes version {version} of its JSON, not {FORMAT_VERSION}")
            sys.exit(OTHER_FORMAT)
        self.name = path.stem
        self.index = self.json["index"]
        self.by_path = {}
        self._name_items(self.json["root"], (self.name,))

    def _name_items(self, id, path):
        """Records where each item is defined, as other crates know it."""
        self.by_path[path] = id
        kind, inner = kind_of(self.index[str(id)])
        for child in inner["items"] if kind == "module" else []:
            item = self.index.get(str(child))
            if item and item["name"]:
                self._name_items(child, (*path, item["name"]))


class Crates:
    def __init__(self, folder):
        crates = [Crate(path) for path in sorted(folder.glob("*.json"))]
        self.by_name = {crate.name: crate for crate in crates}

    def resolve(self, crate, id):
        """The crate that defines an item, and the item's id there; or its path in another crate."""
        if str(id) in crate.index:
            return crate.name, id
        summary = crate.json["paths"].get(str(id))
        if summary is None:
            sys.exit(f"{crate.name}: item {id} is neither here nor in another crate")
        path = tuple(summary["path"])
        owner = self.by_name.get(path[0])
        if owner is None:
            return path[0], "::".join(path)
        if path not in owner.by_path:
            sys.exit(f"{crate.name} names {'::'.join(path)}, which is not found")
        return owner.name, owner.by_path[path]

    def item(self, place):
        """The item with this crate and id; None if it is not ours."""
        crate = self.by_name.get(place[0])
        return crate and crate.index[str(place[1])]

    def exported(self, module):
        """The items that a module offers, and those of its public modules, by crate and id."""
        found, modules = set(), [module]
        while modules:
            module = modules.pop()
            crate = self.by_name[module[0]]
            for id in kind_of(self.item(module))[1]["items"]:
                place = (crate.name, id)
                if (item := crate.index.get(str(id))) is None or not is_public(item):
                    continue
                kind, inner = kind_of(item)
                if kind == "use":
                    place = self.resolve(crate, inner["id"])
                    item = self.item(place)
                    kind = item and kind_of(item)[0]
                    if kind == "module" and not inner["is_glob"]:
                        found.add(place)
                if place in found and kind != "module":
                    continue
                found.add(place)
                if kind == "module":
                    modules.append(place)
        return found


def kind_of(item):
    [(kind, inner)] = item["inner"].items()
    return kind, inner


def is_public(item):
    # Variants and the items of traits and of their implementations have the visibility "default".
    return item["visibility"] in ("public", "default") and "doc(hidden)" not in str(item["attrs"])


def named(part):
    """The ids of all types and traits that a part of a signature names."""
    if isinstance(part, dict):
        if "path" in part and "id" in part and "args" in part:
            yield part["id"]
        for value in part.values():
            yield from named(value)
    elif isinstance(part, list):
        for value in part:
            yield from named(value)


def signatures(crate, item):
    """What users see of an item: pairs of a name and a part of the JSON that names types."""
    kind, inner = kind_of(item)
    at = crate.index.get
    own = item["name"] or ""

    def children(ids):
        for id in ids or []:
            child = id is not None and at(str(id))
            if child and is_public(child):
                yield child

    if kind in ("function", "type_alias", "constant", "static", "assoc_const"):
        yield own, inner
    elif kind in ("assoc_type", "struct_field"):
        yield own, inner
    elif kind == "variant":
        shape = inner["kind"]
        fields = [] if shape == "plain" else shape.get("tuple") or shape.get("struct", {})
        for field in children(fields["fields"] if isinstance(fields, dict) else fields):
            yield f"{own}.{field['name']}", field["inner"]
    elif kind == "trait":
        yield own, [inner["bounds"], inner["generics"]]
        for child in children(inner["items"]):
            for name, part in signatures(crate, child):
                yield f"{own}::{name}", part
    elif kind in ("struct", "enum", "union"):
        yield own, inner["generics"]
        fields = inner.get("fields") or inner.get("variants")
        if kind == "struct":
            shape = inner["kind"]
            fields = [] if shape == "unit" else shape.get("tuple") or shape.get("plain")
            fields = fields["fields"] if isinstance(fields, dict) else fields
        for child in children(fields):
            for name, part in signatures(crate, child):
                yield f"{own}::{name}", part
        for id in inner["impls"]:
            implementation = at(str(id))
            if implementation is None:
                continue
            body = kind_of(implementation)[1]
            if body["is_synthetic"] or body["blanket_impl"]:
                continue
            header = [body["trait"], body["generics"]]
            # An implementation that names a private item is of no use to others.
            ours = [item for id in named(header) if (item := at(str(id)))]
            if body["trait"] and all(item["visibility"] == "public" for item in ours):
                yield f"impl of {body['trait']['path']} for {own}", header
            for child in children(body["items"]):
                # A trait's own signatures are checked where it is defined.
                if body["trait"] is None or kind_of(child)[0] == "assoc_type":
                    for name, part in signatures(crate, child):
                        yield f"{own}::{name}", part


def doubled_names(crates, exported):
    """The names of more than one exported type, each with the crates that define them."""
    owners = {}
    for owner, id in exported:
        item = crates.item((owner, id))
        if item and kind_of(item)[0] in ("struct", "enum", "union", "trait", "type_alias"):
            owners.setdefault(item["name"], []).append(owner)
    return {
        name: sorted(of)
        for name, of in sorted(owners.items())
        if len(of) > 1 and name not in SHARED_NAMES
    }


def main(folder):
    crates = Crates(pathlib.Path(folder))
    exported = crates.exported((FACADE, crates.by_name[FACADE].json["root"]))
    missing, dependencies, types = {}, set(), 0
    for owner, id in sorted(exported, key=str):
        crate = crates.by_name.get(owner)
        if crate is None:
            continue
        item = crate.index[str(id)]
        types += kind_of(item)[0] in ("struct", "enum", "trait")
        for name, part in signatures(crate, item):
            for used in named(part):
                place = crates.resolve(crate, used)
                if place in exported or place[0] in STANDARD:
                    continue
                if place[0] in PUBLIC_DEPENDENCIES:
                    dependencies.add(place[0])
                    continue
                other = crates.item(place)
                if other and other["name"] == SEAL:
                    continue
                type_name = f"{place[0]}::{other['name']}" if other else place[1]
                missing.setdefault(type_name, set()).add(f"{owner}: {name}")
    if types < 100:
        sys.exit(f"only {types} types were found")
    faults = [
        f"{FACADE} does not export {type_name}, which is in\n    " + "\n    ".join(sorted(users))
        for type_name, users in sorted(missing.items())
    ]
    faults += [
        f"no public signature names {unused}, which is listed as a public dependency"
        for unused in sorted(PUBLIC_DEPENDENCIES.keys() - dependencies)
    ]
    faults += [
        f"{FACADE} exports several types called {name}: {', '.join(owners)}"
        for name, owners in doubled_names(crates, exported).items()
    ]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{types} exported types and traits; all types in their signatures are exported")


if __name__ == "__main__":
    main(*sys.argv[1:])
