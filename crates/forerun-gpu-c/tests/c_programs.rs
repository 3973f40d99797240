//! Compiles the headers, compares them with the library, and runs programs in C and C++. Without a
//! compiler nothing is run, and a message says so.

#![cfg(target_os = "linux")]

use forerun_gpu_c::{Allocator, BagArrays, Condition, EntryArrays, KeyArrays, Options};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = include_str!("../include/forerun_gpu.h");

/// The first of these commands that exists.
fn found(variable: &str, names: [&str; 3]) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|name| !name.is_empty());
    let mut names = named.into_iter().chain(names.map(String::from));
    let command = names.find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    if command.is_none() {
        eprintln!("C programs: no compiler ({variable}): NOT RUN");
    }
    command
}

fn crate_path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

/// The directory of the test program is that of the libraries.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compile(compiler: &str, standard: &str) -> Command {
    let mut command = Command::new(compiler);
    command
        .args([
            standard,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-O1",
            "-g1",
        ])
        .arg("-I")
        .arg(crate_path("include"));
    command
}

/// Compiles a program, links it with the static and the shared library, and runs both.
fn run_program(compiler: &str, standard: &str, source: &str) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let object = folder.path().join("object.o");
    let source = crate_path("tests/programs").join(source);
    run(compile(compiler, standard)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object));
    for library in ["libforerun_gpu_c.a", "libforerun_gpu_c.so"] {
        let program = folder.path().join("program");
        run(Command::new(compiler)
            .arg(&object)
            .arg(libraries().join(library))
            .args(["-lm", "-lpthread", "-ldl", "-o"])
            .arg(&program));
        let mut program = Command::new(&program);
        program.env("LD_LIBRARY_PATH", libraries());
        let said = run(program.arg(folder.path().join("saved table")));
        assert!(said.ends_with("ok\n"), "{library}: {said}");
    }
}

#[test]
fn a_program_in_c_uses_every_function() {
    let Some(compiler) = found("CC", ["cc", "gcc", "clang"]) else {
        return;
    };
    let program = fs::read_to_string(crate_path("tests/programs/c_table.c")).unwrap();
    for name in declared() {
        assert!(program.contains(&format!("{name}(")), "{name}");
    }
    run_program(&compiler, "-std=c11", "c_table.c");
}

#[test]
fn a_program_in_cpp_uses_the_class() {
    let Some(compiler) = found("CXX", ["c++", "g++", "clang++"]) else {
        return;
    };
    run_program(&compiler, "-std=c++17", "cpp_table.cpp");
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let code = HEADER
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("forerun_gpu_") {
        let name: String = code[at..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if code[at + name.len()..].starts_with('(') {
            names.insert(name);
        }
    }
    names
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let declared = declared();
    assert!(declared.len() > 30, "{declared:?}");
    if Command::new("nm").arg("--version").output().is_err() {
        eprintln!("symbols: no nm: NOT RUN");
        return;
    }
    let library = libraries().join("libforerun_gpu_c.so");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (_, kind, name) = (words.next()?, words.next()?, words.next()?);
            (kind == "T" && name.starts_with("forerun_")).then(|| name.to_owned())
        })
        .collect();
    assert_eq!(exported, declared);
}

#[test]
fn the_header_s_structs_are_those_of_the_library() {
    let Some(compiler) = found("CC", ["cc", "gcc", "clang"]) else {
        return;
    };
    let mut source = "#include <forerun_gpu.h>\n".to_owned();
    let mut fields = 0;
    macro_rules! layout {
        ($name:literal is $type:ty { $($field:ident)+ }) => {
            let bytes = size_of::<$type>();
            writeln!(source, "_Static_assert(sizeof({}) == {bytes}, \"size\");", $name).unwrap();
            $(
                let (field, offset) = (stringify!($field), offset_of!($type, $field));
                writeln!(
                    source,
                    "_Static_assert(offsetof({}, {field}) == {offset}, \"{field}\");",
                    $name
                )
                .unwrap();
                fields += 1;
            )+
        };
    }
    layout!("forerun_gpu_allocator" is Allocator { context allocate deallocate });
    layout!("forerun_gpu_options" is Options {
        struct_bytes capacity max_capacity row_bytes device_row_bytes_max width candidates
        evict_strategy score_bytes device reserved allocator
    });
    layout!("forerun_gpu_entries" is EntryArrays { count keys rows scores positions });
    layout!("forerun_gpu_batch" is KeyArrays {
        struct_bytes count count_at keys rows scores flags epoch rows_out scores_out slots_out
        pointers_out status_out entries_out element no_writers
    });
    layout!("forerun_gpu_bags" is BagArrays {
        struct_bytes count count_at keys bags offsets weights rows_out found_out sums row_format
        pooling output no_writers
    });
    layout!("forerun_gpu_condition" is Condition { score_min score_max key_mask key_value });
    assert_eq!(fields, 54);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("layout.c");
    fs::write(&file, source).unwrap();
    run(compile(&compiler, "-std=c11")
        .arg("-fsyntax-only")
        .arg(file));
}
