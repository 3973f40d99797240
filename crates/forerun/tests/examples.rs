//! The examples run to their end. `cargo test` builds them together with this test, which
//! `cargo test --test examples` alone does not.

use std::path::PathBuf;
use std::process::Command;

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(|deps| deps.parent());
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    profile.expect("a folder above").join("examples").join(name)
}

fn run(name: &str) -> String {
    let path = example(name);
    assert!(
        path.exists(),
        "run `cargo build -p forerun --examples` first"
    );
    let output = Command::new(path).output().expect("an example");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {output:?}");
    text
}

#[test]
fn the_store_example_restores_what_it_backed_up() {
    let text = run("store");
    assert!(text.contains("500 products, 1000 before"), "{text}");
    assert!(text.contains("restored: 500 products"), "{text}");
}

#[test]
fn the_table_example_updates_a_batch() {
    let text = run("table");
    assert!(text.contains("1024 rows updated"), "{text}");
}

#[test]
fn the_cache_example_finds_most_values() {
    let text = run("cache");
    assert!(text.contains("50,000 values answered"), "{text}");
}

#[test]
fn the_tokio_example_answers_every_task() {
    let text = run("tokio");
    assert!(text.contains("20000 keys in"), "{text}");
}
