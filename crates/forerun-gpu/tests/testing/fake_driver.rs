//! Runs a test with the driver of `tests/driver/fake_driver.cpp`.
//!
//! A driver is loaded once per process and found through the environment, so the test runs again in
//! a child process with the library's folder in `LD_LIBRARY_PATH`.

use std::path::Path;
use std::process::Command;

/// Set in the child.
const CHILD: &str = "FORERUN_FAKE_DRIVER";

/// Whether this process has the fake driver and should run the body of `test`. Otherwise the test
/// has been run in a child, or there is no C++ compiler. Panics if the child fails.
pub fn has_fake_driver(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    // Unit tests have no such folder.
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    let scratch = tempfile::tempdir_in(folder).expect("a folder for temporary files exists");
    if !compiled_into(scratch.path()) {
        eprintln!("driver tests: no C++ compiler (CXX, c++, g++, clang++): NOT RUN");
        return false;
    }
    let output = Command::new(std::env::current_exe().expect("the test's own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", scratch.path())
        .env("XDG_CACHE_HOME", scratch.path())
        .envs(environment.iter().copied())
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} with the fake driver: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Compiles the library under the names by which the driver and NVRTC are loaded.
fn compiled_into(folder: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/fake_driver.cpp");
    let library = folder.join("libcuda.so");
    let named = std::env::var("CXX").ok().filter(|name| !name.is_empty());
    let names = ["c++", "g++", "clang++"].map(String::from);
    let compiler = named.into_iter().chain(names).find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    let Some(compiler) = compiler else {
        return false;
    };
    let output = Command::new(compiler)
        .args([
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(&library)
        .arg(source)
        .output()
        .expect("the compiler started before");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::copy(&library, folder.join("libnvrtc.so")).expect("the folder can be written");
    true
}
