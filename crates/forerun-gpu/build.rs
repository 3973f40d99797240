//! Embeds the kernels: always as source, and as machine code if a CUDA compiler is found.
//!
//! ```text
//!   kernels/all.cu ─ flatten ─ kernels.cu ─┬─ nvcc -ptx ─  80.ptx ─ nvcc -cubin ─ sm_80.cubin
//!                                          ├─ nvcc -ptx ─  90.ptx ─ nvcc -cubin ─ sm_90.cubin
//!                                          ├─ nvcc -ptx ─ 100.ptx ─ nvcc -cubin ─ sm_100.cubin
//!                                          └─ nvcc -ptx ─ 120.ptx ─ nvcc -cubin ─ sm_120.cubin
//!   embedded.rs    the images made, and the version of CUDA that the compiler belongs to
//! ```
//!
//! With the feature `study`, the root is `kernels/study.cu`, which adds the kernels of the benches.
//!
//! The compiler is `FORERUN_NVCC` (`none`: no compiler), otherwise `nvcc` of `CUDA_HOME`, otherwise
//! of `PATH`. A compiler that is named explicitly must work. If one that was merely found fails,
//! the build prints a warning and continues without it. Without a compiler, nothing is run.
//!
//! A driver does not load code of a newer major version of CUDA. `.ci/nvcc12` is a compiler of CUDA
//! 12.0, whose code every supported driver loads.

use std::collections::HashSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The architectures, each with the oldest CUDA whose compiler has it.
const ARCHITECTURES: [(&str, u32); 4] = [
    ("80", 12_000),
    ("90", 12_000),
    ("100", 12_080),
    ("120", 12_080),
];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=FORERUN_NVCC");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut source = String::new();
    let root = match env::var_os("CARGO_FEATURE_STUDY") {
        Some(_) => Path::new("kernels/study.cu"),
        None => Path::new("kernels/all.cu"),
    };
    flatten(root, &mut HashSet::new(), &mut source)?;
    let flat = out.join("kernels.cu");
    fs::write(&flat, &source).map_err(|e| format!("{}: {e}", flat.display()))?;

    let compiler = match nvcc() {
        None => None,
        Some((nvcc, named)) => match compile(&nvcc, &flat, &out) {
            Ok(version) => Some(version),
            Err(error) if named => return Err(error),
            Err(error) => {
                println!(
                    "cargo::warning=the kernels will be compiled on first use: {}",
                    error.lines().next().unwrap_or_default()
                );
                None
            }
        },
    };
    let embedded = out.join("embedded.rs");
    fs::write(&embedded, list(compiler)).map_err(|e| format!("{}: {e}", embedded.display()))
}

/// Returns the file with its includes inlined, each once (as `#pragma once` says), but a `.list`
/// every time. An include that is not in the folder stays an `#include`: the shim's headers, inside
/// an `#if`.
fn flatten(file: &Path, seen: &mut HashSet<PathBuf>, into: &mut String) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let place = |line: usize| format!("#line {line} \"{}\"\n", slashes(file));
    into.push_str(&place(1));
    for (i, line) in text.lines().enumerate() {
        if line.trim() == "#pragma once" {
            into.push('\n');
            continue;
        }
        let quoted = line
            .trim()
            .strip_prefix("#include \"")
            .and_then(|rest| rest.strip_suffix('"'));
        // The folder of the including file, then `kernels/include`, which is also the compiler's
        // include path for the shim.
        let found = quoted.and_then(|name| {
            [folder, Path::new("kernels/include")]
                .iter()
                .map(|folder| folder.join(name))
                .find(|path| path.is_file())
        });
        let Some(path) = found else {
            into.push_str(line);
            into.push('\n');
            continue;
        };
        let whole = fs::canonicalize(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let again = path.extension().is_some_and(|e| e == "list");
        if again || seen.insert(whole) {
            flatten(&path, seen, into)?;
        }
        into.push_str(&place(i + 2));
    }
    Ok(())
}

/// A path in the form that C++ sources use on every system.
fn slashes(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

/// The compiler, and whether it was named explicitly.
fn nvcc() -> Option<(PathBuf, bool)> {
    if let Some(named) = env::var_os("FORERUN_NVCC").filter(|value| !value.is_empty()) {
        return (named != "none").then(|| (named.into(), true));
    }
    let program = format!("nvcc{}", env::consts::EXE_SUFFIX);
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    home.into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(&program))
        .find(|candidate| candidate.is_file())
        .map(|found| (found, false))
}

/// Makes all images and returns the compiler's version of CUDA, 12000 for 12.0.
fn compile(nvcc: &Path, source: &Path, out: &Path) -> Result<u32, String> {
    let run = |arguments: &[&str], from: &Path, to: &Path| {
        let output = Command::new(nvcc)
            .args(["-std=c++17", "-O3"])
            .args(arguments)
            .arg("-o")
            .arg(to)
            .arg(from)
            .output()
            .map_err(|e| format!("{}: {e}", nvcc.display()))?;
        if !output.status.success() {
            return Err(format!(
                "{} {} failed, {}:\n{}",
                nvcc.display(),
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Ok(())
    };
    let mut version = None;
    for (number, since) in ARCHITECTURES {
        if version.is_some_and(|version| version < since) {
            continue;
        }
        let ptx = out.join(format!("{number}.ptx"));
        let cubin = out.join(format!("sm_{number}.cubin"));
        run(&["-ptx", &format!("-arch=compute_{number}")], source, &ptx)?;
        run(&["-cubin", &format!("-arch=sm_{number}")], &ptx, &cubin)?;
        let text = fs::read_to_string(&ptx).map_err(|e| format!("{}: {e}", ptx.display()))?;
        version = cuda_version(&text);
        if version.is_none() {
            return Err(format!("{}: no version of CUDA", ptx.display()));
        }
    }
    version.ok_or_else(|| "no architecture".to_owned())
}

/// The version that the compiler writes at the top of PTX: `// Cuda compilation tools, release
/// 12.0`.
fn cuda_version(ptx: &str) -> Option<u32> {
    let (_, rest) = ptx.split_once("Cuda compilation tools, release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
}

/// The file that `src/cubin/mod.rs` includes. PTX is text and must end with a zero byte.
fn list(compiler: Option<u32>) -> String {
    let mut text = String::new();
    for (number, since) in ARCHITECTURES {
        let (cubin, ptx) = match compiler.filter(|version| *version >= since) {
            None => ("None".to_owned(), "None".to_owned()),
            Some(_) => (
                format!("Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/sm_{number}.cubin\")))"),
                format!(
                    "Some(concat!(include_str!(concat!(env!(\"OUT_DIR\"), \"/{number}.ptx\")), \
                     \"\\0\").as_bytes())"
                ),
            ),
        };
        let _ = writeln!(text, "const SM_{number}: Option<&[u8]> = {cubin};");
        // Newer devices take the PTX for 9.0.
        if since <= 12_000 {
            let _ = writeln!(text, "const PTX_{number}: Option<&[u8]> = {ptx};");
        }
    }
    // Without images, the version is not used.
    let version = compiler.unwrap_or_default();
    let _ = writeln!(
        text,
        "const COMPILER: CudaVersion = CudaVersion({version});"
    );
    text.push_str(
        "const SOURCE: &str = include_str!(concat!(env!(\"OUT_DIR\"), \"/kernels.cu\"));\n",
    );
    text
}
