//! Inside a crate, modules depend downwards only. This test reads the sources of the crates in
//! [`CRATES`] and names each line where a lower module uses a higher one. No two modules of one
//! parent use each other; a module and its submodules may. It also limits how many crates the
//! command `forerun` links.

mod crates;
mod module_tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crates::{CRATES, Layers};
use module_tree::{ModulePath, ModuleTree, Use};

/// The maximum number of crates that the command `forerun` links, those of the workspace included.
/// Each adds to the time of a first build.
const COMMAND_CRATES: usize = 121;

/// The sources of a crate.
fn src(layers: &Layers) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = match layers.name {
        "forerun-python" => crates.join("../python"),
        name => crates.join(name),
    };
    directory.join("src")
}

/// Uses of a higher module by a lower one.
fn upward(uses: &[Use], modules: &[&str]) -> Vec<String> {
    let layer = |path: &ModulePath| {
        let top = path.first()?;
        modules.iter().position(|module| module == top)
    };
    let is_upward = |used: &&Use| {
        let layers = layer(&used.from).zip(layer(&used.to));
        layers.is_some_and(|(from, to)| from < to)
    };
    let shown = |used: &Use| {
        let (from, to) = (used.from.join("::"), used.to.join("::"));
        format!("{from}, line {}: {to}", used.line)
    };
    uses.iter().filter(is_upward).map(shown).collect()
}

/// Pairs of modules of one parent that use each other, each with a line of either.
fn mutual(uses: &[Use]) -> BTreeMap<(String, String), (usize, usize)> {
    let mut lines = BTreeMap::<(String, String), usize>::new();
    for used in uses {
        let shared = used
            .from
            .iter()
            .zip(&used.to)
            .take_while(|(a, b)| a == b)
            .count();
        // A module and its submodules may use each other.
        if shared < used.from.len() && shared < used.to.len() {
            let module = |path: &ModulePath| path[..=shared].join("::");
            lines
                .entry((module(&used.from), module(&used.to)))
                .or_insert(used.line);
        }
    }
    let pairs = lines.iter().filter(|((from, to), _)| from < to);
    pairs
        .filter_map(|((from, to), line)| {
            let back = lines.get(&(to.clone(), from.clone()))?;
            Some(((from.clone(), to.clone()), (*line, *back)))
        })
        .collect()
}

#[test]
fn modules_use_only_what_is_below_them() {
    let mut all = Vec::new();
    for layers in CRATES {
        let uses = ModuleTree::read(&src(layers)).uses();
        let upward = upward(&uses, layers.modules);
        all.extend(upward.iter().map(|line| format!("{}: {line}", layers.name)));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn no_two_modules_of_one_parent_use_each_other() {
    let mut all = Vec::new();
    for layers in CRATES {
        let mut mutual = mutual(&ModuleTree::read(&src(layers)).uses());
        for &(one, other) in layers.one_idea {
            let pair = (one.to_owned(), other.to_owned());
            if mutual.remove(&pair).is_none() {
                all.push(format!(
                    "{}: {one} and {other} no longer use each other: remove them from `one_idea`",
                    layers.name
                ));
            }
        }
        all.extend(mutual.iter().map(|((one, other), (line, back))| {
            format!(
                "{}: {one} (line {line}) and {other} (line {back})",
                layers.name
            )
        }));
    }
    assert!(all.is_empty(), "{} pairs:\n{}", all.len(), all.join("\n"));
}

#[test]
fn every_module_has_a_layer() {
    for layers in CRATES {
        let tree = ModuleTree::read(&src(layers));
        let found: BTreeSet<&str> = tree
            .modules()
            .filter_map(|path| path.first())
            .map(String::as_str)
            .collect();
        let listed: BTreeSet<&str> = layers.modules.iter().copied().collect();
        let differing: Vec<&str> = found.symmetric_difference(&listed).copied().collect();
        assert!(
            differing.is_empty(),
            "{}: {differing:?} in one list only",
            layers.name
        );
    }
}

#[test]
fn the_command_links_few_crates() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "forerun-cli", "-e", "normal"])
        .args(["--prefix", "none", "--no-dedupe"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap();
    let (tree, errors) = (
        String::from_utf8(tree.stdout).unwrap(),
        String::from_utf8(tree.stderr).unwrap(),
    );
    let crates: BTreeSet<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    let is_linked = |name: &str| crates.iter().any(|line| line.starts_with(name));
    assert!(is_linked("forerun-db v"), "{errors}");
    for absent in ["bench", "gpu", "lab", "table", "ucx"] {
        assert!(
            !is_linked(&format!("forerun-{absent} v")),
            "forerun-{absent}"
        );
    }
    let list = Vec::from_iter(crates.iter().copied()).join("\n");
    assert!(
        crates.len() <= COMMAND_CRATES,
        "{} crates, where {COMMAND_CRATES} are allowed:\n{list}",
        crates.len()
    );
}

#[test]
fn an_upward_use_and_a_pair_are_found() {
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<ModulePath>();
    let used = |from: &str, to: &str| Use {
        from: path(from),
        to: path(to),
        line: 7,
    };
    let uses = [
        used("io", "tree::levels"),
        used("tree", "io"),
        used("tree::a", "tree::b"),
    ];
    assert_eq!(upward(&uses, &["io", "tree"]), ["io, line 7: tree::levels"]);
    assert_eq!(
        mutual(&uses).into_keys().collect::<Vec<_>>(),
        [("io".to_owned(), "tree".to_owned())]
    );

    let nested = [used("tree::a::x", "tree::b"), used("tree::b::y", "tree::a")];
    let pair = ("tree::a".to_owned(), "tree::b".to_owned());
    assert_eq!(mutual(&nested).into_keys().collect::<Vec<_>>(), [pair]);
    let child = [used("tree", "tree::a"), used("tree::a", "tree")];
    assert!(mutual(&child).is_empty());
}
