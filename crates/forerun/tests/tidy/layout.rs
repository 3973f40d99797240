//! Names of files, and where the file of a module is.

use std::collections::{BTreeMap, BTreeSet};

const SAME_NAMES: usize = 4;

/// File names that a convention or a role gives: those of Cargo, of Rust, and of the parts that
/// several crates or benches have alike, so that a reader finds each at once.
const CONVENTIONAL_NAMES: [&str; 15] = [
    "Cargo.toml",
    "README.md",
    "mod.rs",
    "lib.rs",
    "main.rs",
    "args.rs",
    "options.rs",
    "error.rs",
    "stats.rs",
    "tests.rs",
    "loom_tests.rs",
    "result_row.rs",
    "show.rs",
    "model.rs",
    "fork.rs",
];

/// Directories whose Rust files are crates of their own, each with its modules in a directory.
const CRATE_ROOTS: [&str; 4] = ["tests", "benches", "examples", "bin"];

/// Names that too many files share, each with the files.
pub(crate) fn shared_names<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut by_name = BTreeMap::<&str, Vec<&str>>::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        by_name.entry(name).or_default().push(path);
    }
    by_name
        .into_iter()
        .filter(|(name, paths)| paths.len() > SAME_NAMES && !CONVENTIONAL_NAMES.contains(name))
        .map(|(name, paths)| {
            let files = paths.len();
            format!("{files} files are called {name}: {}", paths.join(", "))
        })
        .collect()
}

/// Rust modules beside the directory of their submodules.
pub(crate) fn modules_beside_directories<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let sources: Vec<&str> = paths.filter(|path| path.ends_with(".rs")).collect();
    let folders: BTreeSet<&str> = sources
        .iter()
        .filter_map(|path| Some(path.rsplit_once('/')?.0))
        .collect();
    let is_crate_root = |module: &str| {
        let folder = module.rsplit('/').nth(1);
        folder.is_some_and(|folder| CRATE_ROOTS.contains(&folder))
    };
    sources
        .iter()
        .filter_map(|path| path.strip_suffix(".rs"))
        .filter(|module| folders.contains(module) && !is_crate_root(module))
        .map(|module| format!("{module}.rs belongs in {module}/mod.rs"))
        .collect()
}

/// Files beside the `main.rs` of a test program that it does not name: nothing compiles them.
pub(crate) fn left_out<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let files: BTreeMap<&str, &str> = files.collect();
    let left_out = |path: &str| {
        let (folder, name) = path.rsplit_once('/')?;
        let module = name.strip_suffix(".rs").filter(|name| *name != "main")?;
        let main = files.get(format!("{folder}/main.rs").as_str())?;
        let is_test = folder.rsplit('/').nth(1) == Some("tests");
        let named = format!("mod {module};");
        let is_named = main.lines().any(|line| line.ends_with(&named));
        (is_test && !is_named).then(|| format!("{folder}/main.rs does not name {path}"))
    };
    files.keys().filter_map(|path| left_out(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_five_files_share_is_found() {
        let four = ["a/x.rs", "b/x.rs", "c/x.rs", "d/x.rs"];
        assert!(shared_names(four.into_iter()).is_empty());
        assert_eq!(shared_names(four.into_iter().chain(["e/x.rs"])).len(), 1);
        assert!(shared_names(["mod.rs"; 5].into_iter()).is_empty());
    }

    #[test]
    fn a_module_beside_the_directory_of_its_submodules_is_found() {
        let beside = |paths: [&'static str; 2]| modules_beside_directories(paths.into_iter()).len();
        assert_eq!(beside(["a/src/x.rs", "a/src/x/y.rs"]), 1);
        assert_eq!(beside(["a/src/x/mod.rs", "a/src/x/y.rs"]), 0);
        assert_eq!(beside(["a/tests/x.rs", "a/tests/x/y.rs"]), 0);
        assert_eq!(beside(["a/src/x.rs", "a/src/x/data.txt"]), 0);
    }

    #[test]
    fn a_test_that_no_program_has_is_found() {
        let left_out = |main: &'static str| {
            let others = ["x.rs", "y.rs", "z.rs", "notes.md"];
            let others = others.map(|name| (format!("a/tests/t/{name}"), ""));
            let files = others.iter().map(|(path, text)| (path.as_str(), *text));
            left_out(files.chain([(main, "mod x;\npub mod y;\n")]))
        };
        let found = left_out("a/tests/t/main.rs");
        assert_eq!(found, ["a/tests/t/main.rs does not name a/tests/t/z.rs"]);
        assert!(left_out("a/tests/u/main.rs").is_empty());
    }
}
