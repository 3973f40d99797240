//! Locks, threads, clocks and randomness must come from `forerun_core::sync`: the simulator and
//! ThreadSanitizer cannot see the standard library's own locks. This test reads the sources of the
//! crates that users link, without comments and tests, and reports each line that bypasses the
//! facade.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] = [
    "core", "db", "hash", "cache", "table", "ucx", "server", "gpu", "gpu-c",
];

/// Files below `crates/` that may bypass the facade, and why.
const EXCEPTIONS: [(&str, &str); 1] = [("forerun-core/src/sync/", "the facade itself")];

/// The items of `std::sync` that the facade replaces. Arc, Weak and the atomics are the same in
/// every back end.
const TYPES: [&str; 13] = [
    "Mutex",
    "MutexGuard",
    "RwLock",
    "RwLockReadGuard",
    "RwLockWriteGuard",
    "Condvar",
    "Once",
    "OnceLock",
    "LazyLock",
    "Barrier",
    "PoisonError",
    "TryLockError",
    "mpsc",
];

const CALLS: [&str; 8] = [
    "std::thread::",
    "std::thread;",
    "std::{",
    "std::hint::spin_loop",
    "Instant::now",
    "SystemTime::now",
    ".elapsed()",
    "RandomState::new",
];

#[derive(Debug, PartialEq)]
struct Breach {
    line: usize,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// The end of a file's product code: the tests come last.
fn without_tests(source: &str) -> &str {
    let mut lines = source.split_inclusive('\n').scan(0, |end, line| {
        let start = *end;
        *end += line.len();
        Some((start, line))
    });
    let mut attribute = None;
    let tests = lines.find_map(|(start, line)| {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            attribute = Some(start);
        } else if !line.starts_with("#[") {
            let begun = attribute.take();
            return begun.filter(|_| line.contains("mod ") && line.trim_end().ends_with('{'));
        }
        None
    });
    &source[..tests.unwrap_or(source.len())]
}

fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    source.lines().map(code).collect::<Vec<_>>().join("\n")
}

fn breaches(source: &str) -> Vec<Breach> {
    let code = without_comments(without_tests(source));
    let mut found = Vec::new();
    let mut add = |at: usize, what: &str| {
        let line = 1 + code[..at].matches('\n').count();
        let what = what.to_owned();
        found.push(Breach { line, what });
    };
    for (at, path) in code.match_indices("std::sync::") {
        let rest = &code[at + path.len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => rest,
        };
        for name in names
            .split(',')
            .take(if names == rest { 1 } else { usize::MAX })
        {
            let name = name.trim_start();
            let ends_name = |letter: char| !letter.is_alphanumeric() && letter != '_';
            let name = name.split(ends_name).next().unwrap_or_default();
            if TYPES.contains(&name) {
                add(at, &format!("std::sync::{name}"));
            }
        }
    }
    for call in CALLS {
        code.match_indices(call).for_each(|(at, _)| add(at, call));
    }
    found.sort_by_key(|breach| breach.line);
    found
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    name == "tests.rs" || name.ends_with("_tests.rs")
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir()
            && !["testing", "tests"]
                .map(OsStr::new)
                .contains(&path.file_name().unwrap())
        {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") && !is_test(&path) {
            into.push(path);
        }
    }
}

#[test]
fn locks_threads_clocks_and_randomness_come_through_the_facade() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for name in CRATES {
        sources(&crates.join(format!("forerun-{name}/src")), &mut files);
    }
    assert!(files.len() > 200, "it has read only {} files", files.len());
    let mut all = Vec::new();
    for path in files {
        let within = path.strip_prefix(crates).unwrap().to_str().unwrap();
        if EXCEPTIONS
            .iter()
            .any(|(start, _)| within.starts_with(start))
        {
            continue;
        }
        let found = breaches(&fs::read_to_string(&path).unwrap());
        all.extend(found.iter().map(|breach| format!("{within}, {breach}")));
    }
    assert!(
        all.is_empty(),
        "use forerun_core::sync:\n{}",
        all.join("\n")
    );
}

#[test]
fn exceptions_name_files_that_exist() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (path, why) in EXCEPTIONS {
        assert!(crates.join(path).exists(), "{path} ({why})");
    }
}

#[test]
fn every_form_of_naming_a_lock_is_found() {
    let named = |source: &str| -> Vec<String> {
        breaches(source)
            .into_iter()
            .map(|breach| breach.what)
            .collect()
    };
    assert_eq!(named("use std::sync::Mutex;"), ["std::sync::Mutex"]);
    let listed = "use std::sync::{\n    Arc,\n    OnceLock, mpsc::channel,\n};";
    assert_eq!(named(listed), ["std::sync::OnceLock", "std::sync::mpsc"]);
    assert_eq!(
        named("fn f(m: &std::sync::RwLock<u8>) {}"),
        ["std::sync::RwLock"]
    );
    assert_eq!(named("use std::{sync::Mutex, fmt};"), ["std::{"]);
    assert_eq!(named("let now = Instant::now();"), ["Instant::now"]);
    assert_eq!(
        breaches("\n\nstd::thread::sleep(time);"),
        [Breach {
            line: 3,
            what: "std::thread::".to_owned()
        }]
    );

    assert!(named("use std::sync::{Arc, Weak};\nuse std::sync::atomic::Ordering;").is_empty());
    assert!(named("// std::sync::Mutex would do").is_empty());
    assert!(named("use forerun_core::sync::{Mutex, thread};").is_empty());
    let tests = "#[cfg(test)]\n#[allow(dead_code)]\nmod tests {\n    use std::sync::Mutex;\n}\n";
    assert!(named(tests).is_empty());
    // A test module in a separate file does not end the product code.
    let apart = "#[cfg(test)]\nmod tests;\nuse std::sync::Mutex;\n";
    assert_eq!(named(apart), ["std::sync::Mutex"]);
}
