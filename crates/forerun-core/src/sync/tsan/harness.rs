//! Runs the tests of a crate one after another. The standard library's harness passes results
//! between threads in ways that the sanitizer does not see. It also runs several tests at a time,
//! and the sanitizer does not see that they synchronize through a `Once`. `.ci/lib/tsan` names
//! [`run`] as the runner of every test program.
//!
//! Arguments are as in that harness: parts of names select tests, and `--skip` excludes some.
//! `FORERUN_TEST_SHARD=i/n` selects every n-th of these, from the i-th on, so that n processes
//! share the tests.

extern crate test;

use std::any::Any;
use std::process::exit;
use std::thread;
use std::time::Instant;

use test::{ShouldPanic, TestDescAndFn, TestFn};

/// Runs the selected tests and exits.
pub fn run(tests: &[&TestDescAndFn]) {
    let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(arguments.next()),
            option if option.starts_with('-') => {
                eprintln!("This harness does not support {option}.");
                exit(2);
            }
            _ => wanted.push(argument),
        }
    }
    let is_in = |names: &[String], name: &str| names.iter().any(|part| name.contains(part));
    let chosen = tests.iter().filter(|test| {
        let name = test.desc.name.as_slice();
        !test.desc.ignore && (wanted.is_empty() || is_in(&wanted, name)) && !is_in(&skipped, name)
    });
    let (first, step) = shard();
    let chosen = chosen.skip(first).step_by(step);
    let (mut passed, mut failed) = (0, 0);
    for test in chosen {
        let start = Instant::now();
        let result = run_one(test);
        let name = test.desc.name.as_slice();
        println!(
            "test {name} ... {} ({:.1} s)",
            if result.is_ok() { "ok" } else { "FAILED" },
            start.elapsed().as_secs_f64()
        );
        match result {
            Ok(()) => passed += 1,
            Err(why) => {
                println!("    {why}");
                failed += 1;
            }
        }
    }
    println!("test result: {passed} passed; {failed} failed");
    if failed > 0 {
        exit(101);
    }
}

/// The first test of this process, and the distance to its next one.
fn shard() -> (usize, usize) {
    let Ok(shard) = std::env::var("FORERUN_TEST_SHARD") else {
        return (0, 1);
    };
    let parts = shard.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
    match parts {
        Some((Ok(i), Ok(n))) if i < n => (i, n),
        _ => {
            eprintln!("FORERUN_TEST_SHARD is i/n with i < n, not {shard}.");
            exit(2);
        }
    }
}

/// Runs a test on its own thread, as it may expect.
fn run_one(test: &TestDescAndFn) -> Result<(), String> {
    let TestFn::StaticTestFn(function) = test.testfn else {
        return Err("it is not a plain test function".to_owned());
    };
    let thread = thread::Builder::new().name(test.desc.name.to_string());
    let thread = thread.spawn(function).map_err(|error| error.to_string())?;
    match (thread.join(), test.desc.should_panic) {
        (Ok(result), ShouldPanic::No) => result,
        (Ok(_), _) => Err("it did not panic".to_owned()),
        (Err(_), ShouldPanic::Yes) => Ok(()),
        (Err(payload), ShouldPanic::YesWithMessage(part)) if message(&*payload).contains(part) => {
            Ok(())
        }
        (Err(payload), _) => Err(message(&*payload).to_owned()),
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked")
}
