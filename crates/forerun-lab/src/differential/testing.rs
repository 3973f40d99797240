//! What the tests of both protocols do.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::history::play;
use super::history_file;
use super::protocol::Protocol;
use super::shrink::shrink;
use super::step::Step;

/// Says that a test is skipped. The test harness hides what `eprintln!` prints in a test that
/// passes.
pub(super) fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Plays the histories in a directory of `seeds/differential`, which failed once.
pub(super) fn kept_histories_agree<P: Protocol>(directory: &str, protocol: Option<&P>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds/differential")
        .join(directory);
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory of histories")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a text");
        let steps = history_file::from_text(&text).expect("a history");
        let Some(protocol) = protocol else {
            continue;
        };
        let (played, failure) = play(protocol, &steps).expect("both servers run");
        assert!(failure.is_none(), "{}: {failure:?}", file.display());
        assert!(played.answers > 0, "{}", file.display());
    }
}

/// Plays eight seeds.
pub(super) fn fixed_seeds_agree(protocol: &impl Protocol) {
    for seed in 1..=8 {
        let steps = protocol.history(seed);
        let (played, failure) = play(protocol, &steps).expect("both servers run");
        assert!(failure.is_none(), "seed {seed}: {failure:?}");
        assert!(played.answers > 50, "seed {seed} has answers");
    }
}

/// Plays steps of which one alone gets different answers, and returns what is left of that one.
pub(super) fn shrunk_to_one_step(protocol: &impl Protocol, steps: &[Step]) -> Step {
    let (_, failure) = play(protocol, steps).expect("both servers run");
    let failure = failure.expect("the answers differ");
    let (short, failure) = shrink(protocol, steps, failure).expect("they run");
    assert_eq!(short.len(), 1, "{short:?}");
    assert_ne!(failure.ours, failure.theirs);
    short[0].clone()
}
