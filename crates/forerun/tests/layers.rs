//! Inside a crate, modules depend downwards only. This test reads the sources of the crates in
//! [`CRATES`] and names each line where a lower module uses a higher one. It also limits how many
//! crates the command `forerun` links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The maximum number of crates that the command `forerun` links, those of the workspace included.
/// Each adds to the time of a first build.
const COMMAND_CRATES: usize = 130;

/// A crate and its modules, from the lowest to the highest. Each may use only those before it.
struct Layers {
    name: &'static str,
    modules: &'static [&'static str],
}

const CRATES: &[Layers] = &[
    Layers {
        name: "forerun-core",
        modules: &[
            "sync",
            "arch",
            "process",
            "epoch",
            "figures",
            "hashing",
            "interleave",
            "panic_message",
            "planted_defects",
            "region",
            "setters",
            "size",
            "touch",
        ],
    },
    Layers {
        name: "forerun-db",
        modules: &[
            "error",
            "limits",
            "planted",
            "panics",
            "bytes",
            "io",
            "comparator",
            "values",
            "ops",
            "versions",
            "ranges",
            "clock",
            "sealed",
            "cache",
            "run",
            "memtable",
            "wal",
            "store_dir",
            "options",
            "tree",
            "db",
            "offline",
            "backup",
        ],
    },
    Layers {
        name: "forerun-cache",
        modules: &[
            "budget",
            "stats",
            "sync",
            "epoch",
            "eviction",
            "generation",
            "index",
            "options",
            "page_runs",
            "value",
            "blocks",
            "hasher",
            "limbo",
            "cache",
            "clock",
            "request",
            "item",
            "lookup",
            "guard",
            "crawler",
            "unlink",
            "evict",
            "flush",
            "memory_limit",
            "reclaim",
            "write",
            "operations",
            "sweep",
        ],
    },
    Layers {
        name: "forerun-gpu",
        modules: &[
            "copy_version",
            "cubin",
            "gather_error",
            "memory_kind",
            "error",
            "driver",
            "gather",
            "table",
            "study",
        ],
    },
    Layers {
        name: "forerun-table",
        modules: &[
            "row_type",
            "error",
            "ghosts",
            "policy",
            "options",
            "admission",
            "key_locks",
            "promotion_batch",
            "ring_pool",
            "latency",
            "stats",
            "device_tier",
            "interrupt",
            "disk_tier",
            "host",
            "move_queue",
            "inner",
            "background_moves",
            "memory_budget",
            "close",
            "snapshot",
            "table",
            "builder",
            "weak_table",
            "typed",
            "device_moves",
            "misses",
            "find_scratch",
            "find",
            "find_to_device",
            "flush",
            "host_moves",
            "ingest",
            "write",
        ],
    },
    Layers {
        name: "forerun-server",
        modules: &[
            "planted",
            "snapshot_error",
            "error",
            "address",
            "system",
            "net",
            "os",
            "protocol",
            "auth",
            "counters",
            "settings",
            "shared",
            "metrics",
            "input",
            "output",
            "session",
            "snapshot",
            "server",
        ],
    },
    Layers {
        name: "forerun-measure",
        modules: &[
            "size",
            "progress",
            "harness",
            "machine",
            "text_table",
            "report",
            "result_row",
            "typical",
        ],
    },
    Layers {
        name: "forerun-cli",
        modules: &[
            "exit",
            "output",
            "input",
            "measure",
            "open_store",
            "commands",
            "cli",
        ],
    },
    Layers {
        name: "forerun-bench",
        modules: &[
            "skew",
            "workload",
            "engine",
            "panels",
            "lookup_page",
            "threads",
            "loaded_engine",
            "output",
            "lookup_workloads",
            "lookup_args",
            "lookup_output",
            "roofline",
            "btree",
            "process_usage",
            "cache",
            "on_gpu",
            "gather",
            "gpu_roofline",
            "gpu_table",
            "hash",
            "memtable",
            "server",
            "store_engine",
            "table",
            "ycsb",
        ],
    },
];

/// The sources of a crate.
fn src(layers: &Layers) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    crates.join(layers.name).join("src")
}

/// The crate's root: its library, or its program.
fn root(src: &Path) -> PathBuf {
    let library = src.join("lib.rs");
    if library.exists() {
        library
    } else {
        src.join("main.rs")
    }
}

/// What the crate's root re-exports: a name, and the module it comes from.
fn exports(root: &Path) -> Vec<(String, String)> {
    let code = without_comments(&fs::read_to_string(root).unwrap());
    let mut exports = Vec::new();
    for statement in code.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else {
            continue;
        };
        let module = first_word(path);
        let names = match path.split_once('{') {
            Some((_, list)) => first_words(list),
            None => vec![path.rsplit("::").next().unwrap_or_default().trim()],
        };
        exports.extend(
            names
                .iter()
                .map(|name| (name.to_string(), module.to_owned())),
        );
    }
    exports
}

/// The names by which a source can reach these modules: their own, and those of what the root
/// re-exports from them.
fn names_of<'a>(modules: &[&'a str], exports: &'a [(String, String)]) -> Vec<&'a str> {
    let is_exported = |(_, module): &&(String, String)| modules.contains(&module.as_str());
    let exported = exports.iter().filter(is_exported);
    let exported = exported.map(|(name, _)| name.as_str());
    modules.iter().copied().chain(exported).collect()
}

fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    source.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// The lines that use one of these modules of the crate, by any path that starts at its root.
fn uses(source: &str, modules: &[&str]) -> Vec<String> {
    let code = without_comments(source);
    let mut found = Vec::new();
    for (at, root) in code.match_indices("crate::") {
        let line = 1 + code[..at].matches('\n').count();
        let rest = &code[at + root.len()..];
        let starts = match rest.strip_prefix('{') {
            Some(list) => first_words(list),
            None => vec![first_word(rest)],
        };
        let above = starts.iter().filter(|name| modules.contains(name));
        found.extend(above.map(|name| format!("line {line}: crate::{name}")));
    }
    found
}

/// The first word of each path in a list, up to its closing brace.
fn first_words(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut words) = (0_usize, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                words.push(first_word(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                words.push(first_word(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    words
}

fn first_word(path: &str) -> &str {
    let path = path.trim_start();
    let ends = |letter: char| !letter.is_alphanumeric() && letter != '_';
    path.split(ends).next().unwrap_or_default()
}

/// The files of a module: `name.rs`, and everything below `name/` except for tests.
fn files(src: &Path, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let file = src.join(format!("{name}.rs"));
    if file.exists() {
        files.push(file);
    }
    let mut directories = vec![src.join(name)];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            // Unit tests may use what is above to make their data.
            let is_test = path.file_stem().is_some_and(|stem| {
                let stem = stem.to_string_lossy();
                stem == "tests" || stem.ends_with("_tests")
            });
            if is_test {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// The lines of a module's sources that use any of these modules.
fn broken(src: &Path, module: &str, above: &[&str], exports: &[(String, String)]) -> Vec<String> {
    let names = names_of(above, exports);
    let files = files(src, module);
    assert!(!files.is_empty(), "there is no module {module}");
    let mut broken = Vec::new();
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        let product = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let uses = uses(product, &names);
        broken.extend(
            uses.iter()
                .map(|line| format!("{}, {line}", path.display())),
        );
    }
    broken
}

#[test]
fn modules_use_only_what_is_below_them() {
    let mut all = Vec::new();
    for layers in CRATES {
        let src = src(layers);
        let exports = exports(&root(&src));
        for (at, module) in layers.modules.iter().enumerate() {
            all.extend(broken(&src, module, &layers.modules[at + 1..], &exports));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn every_module_has_a_layer() {
    for layers in CRATES {
        let code = without_comments(&fs::read_to_string(root(&src(layers))).unwrap());
        let declared = code.lines().filter_map(|line| line.split_once("mod "));
        for name in declared.filter_map(|(_, name)| name.strip_suffix(';')) {
            assert!(
                name == "testing" || layers.modules.contains(&name),
                "{}: {name} has no layer",
                layers.name
            );
        }
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
    assert!(!is_linked("forerun-bench v") && !is_linked("forerun-lab v"));
    let list = Vec::from_iter(crates.iter().copied()).join("\n");
    assert!(
        crates.len() <= COMMAND_CRATES,
        "{} crates, where {COMMAND_CRATES} are allowed:\n{list}",
        crates.len()
    );
}

#[test]
fn every_form_of_use_is_found() {
    let tree = |source: &str| uses(source, &["tree", "wal"]);
    assert_eq!(tree("use crate::tree::levels;"), ["line 1: crate::tree"]);
    assert_eq!(
        tree("\nuse crate::{\n    io::{Io, IoFile},\n    tree::levels::Levels, wal,\n};"),
        ["line 2: crate::tree", "line 2: crate::wal"]
    );
    assert_eq!(
        tree("fn f(of: &crate::tree::Levels) {}"),
        ["line 1: crate::tree"]
    );
    assert_eq!(tree("use crate::{Error, tree};"), ["line 1: crate::tree"]);
    assert!(tree("// crate::tree decides").is_empty());
    assert!(tree("use crate::run::tree;\nuse crate::{run::tree, io};").is_empty());
    assert!(tree("use crate::treetop;").is_empty());
}
