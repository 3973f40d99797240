//! Compiles the kernels' own sources for the host: `shim/` makes each lane a fiber.
//!
//! ```text
//!   kernels/*.cu ─┐
//!   shim/*.h     ─┼─ the C++ compiler ─ <target>/tmp/kernels-<content>/{machine, gather, ...}
//!   tests/kernels ┘  -fsanitize=address,undefined
//! ```
//!
//! The programs are kept under a name derived from all sources, the compiler and its flags. So they
//! are compiled once, and all test programs share them. Without a C++ compiler nothing is run, and
//! a message says so.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// `#pragma unroll` is an extension of the device compiler.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    // Lines for the reports of the sanitizers. Full debug information takes half of the time.
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    // A product and a sum stay two roundings, as in the kernels.
    "-ffp-contract=off",
    "-DFORERUN_SHIM",
    "-I.",
    "-Ikernels",
    "-Ikernels/include",
];
/// The sources of each program.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "machine",
        &[
            "tests/kernels/machine.cpp",
            "tests/kernels/orders.cpp",
            "tests/kernels/vocabulary.cu",
        ],
    ),
    ("busy", &["kernels/busy.cu", "tests/kernels/busy.cpp"]),
    (
        "roofline",
        &["kernels/roofline.cu", "tests/kernels/roofline.cpp"],
    ),
    ("litmus", &["kernels/litmus.cu", "tests/kernels/litmus.cpp"]),
    (
        "gather",
        &[
            "kernels/gather.cu",
            "kernels/gather_study.cu",
            "tests/kernels/gather.cpp",
            "tests/kernels/gather_requests.cpp",
        ],
    ),
    (
        "table",
        &[
            "kernels/table.cu",
            "kernels/table_study.cu",
            "tests/kernels/table_server.cpp",
        ],
    ),
    (
        "hot_pool",
        &["kernels/hot_pool.cu", "tests/kernels/hot_pool_server.cpp"],
    ),
];

/// Prints text even if the test harness captures a passing test's output.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

struct Compiler {
    command: OsString,
    version: String,
    sanitizers: &'static [&'static str],
}

impl Compiler {
    fn find(scratch: &Path) -> Option<Self> {
        let named = std::env::var_os("CXX").filter(|name| !name.is_empty());
        let (command, version) = named
            .into_iter()
            .chain(["c++", "g++", "clang++"].map(OsString::from))
            .find_map(|command| {
                let output = Command::new(&command).arg("--version").output().ok()?;
                output.status.success().then(|| {
                    (
                        command,
                        String::from_utf8_lossy(&output.stdout).into_owned(),
                    )
                })
            })?;
        let mut compiler = Self {
            command,
            version,
            sanitizers: SANITIZERS,
        };
        if !compiler.makes_a_program_that_runs(scratch) {
            say(
                "kernel tests: no address and undefined-behaviour sanitizers here; running without",
            );
            compiler.sanitizers = &[];
        }
        Some(compiler)
    }

    /// Sanitizers need a library that some installations lack, and address space that some machines
    /// refuse.
    fn makes_a_program_that_runs(&self, scratch: &Path) -> bool {
        let (source, program) = (scratch.join("probe.cpp"), scratch.join("probe"));
        fs::write(&source, "int main() { return 0; }\n").is_ok()
            && self
                .command()
                .arg(&source)
                .arg("-o")
                .arg(&program)
                .output()
                .is_ok_and(|o| o.status.success())
            && Command::new(&program)
                .output()
                .is_ok_and(|o| o.status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(FLAGS)
            .args(self.sanitizers);
        command
    }

    fn run(&self, command: &mut Command) {
        let output = command.output().expect("the compiler started before");
        assert!(
            output.status.success(),
            "{command:?} failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Compiles every source to an object, as many at a time as there are CPUs, then links the
    /// programs.
    fn build(&self, into: &Path) {
        let object = |source: &str| into.join(source.replace(['/', '.'], "_") + ".o");
        let waiting: Vec<&str> = PROGRAMS
            .iter()
            .flat_map(|(_, sources)| *sources)
            .copied()
            .collect();
        let waiting = Mutex::new(waiting);
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let Some(source) = waiting.lock().expect("no compiler panics").pop() else {
                            return;
                        };
                        self.run(
                            self.command()
                                .args(["-x", "c++", "-c", source, "-o"])
                                .arg(object(source)),
                        );
                    }
                });
            }
        });
        for (program, sources) in PROGRAMS {
            self.run(
                self.command()
                    .args(sources.iter().map(|source| object(source)))
                    .arg("-o")
                    .arg(into.join(program)),
            );
        }
    }
}

/// A name derived from everything that determines the compiler's output.
fn content(compiler: &Compiler) -> u64 {
    fn take(path: &Path, hasher: &mut DefaultHasher) {
        if path.is_dir() {
            let mut entries: Vec<_> = fs::read_dir(path)
                .expect("a folder of the crate")
                .map(|entry| entry.expect("an entry of the crate").path())
                .collect();
            entries.sort();
            entries.iter().for_each(|entry| take(entry, hasher));
        } else {
            path.hash(hasher);
            fs::read(path).expect("a source of the crate").hash(hasher);
        }
    }
    let mut hasher = DefaultHasher::new();
    (FLAGS, compiler.sanitizers, PROGRAMS).hash(&mut hasher);
    (&compiler.command, &compiler.version).hash(&mut hasher);
    for folder in ["kernels", "shim", "tests/kernels", "tests/testing"] {
        take(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut hasher,
        );
    }
    hasher.finish()
}

/// The directory of the programs, or `None` without a compiler.
pub fn programs() -> Option<&'static Path> {
    static PROGRAMS_DIR: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAMS_DIR
        .get_or_init(|| {
            let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
                .expect("target/tmp can be written");
            let Some(compiler) = Compiler::find(scratch.path()) else {
                say("kernel tests: no C++ compiler (CXX, c++, g++, clang++): NOT RUN");
                return None;
            };
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("kernels-{:016x}", content(&compiler)));
            if !kept.is_dir() {
                compiler.build(scratch.path());
                // Another run may have finished first. Then its programs are used.
                if fs::rename(scratch.path(), &kept).is_err() {
                    assert!(
                        kept.is_dir(),
                        "{} cannot be moved into place",
                        kept.display()
                    );
                }
            }
            Some(kept)
        })
        .as_deref()
}
