//! Runs the kernels' own sources on the host. `tests/kernels/*.cpp` compare the result with plain
//! loops, in one process per test. `tests/table.rs` tests the kernels of the hash table.

#![cfg(unix)]

mod testing;

use std::process::Command;
use testing::programs;

/// Runs the tests of a program whose names contain `filter`.
fn run(program: &str, filter: &str) {
    let Some(programs) = programs() else { return };
    let output = Command::new(programs.join(program))
        .arg(filter)
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=0:detect_stack_use_after_return=0",
        )
        .env("UBSAN_OPTIONS", "print_stacktrace=1")
        .output()
        .expect("a program that was just built");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(
        output.status.success() && text.contains("ok    "),
        "{program} {filter}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_machine_finds_planted_mistakes() {
    run("machine", "");
}

#[test]
fn litmus_tests_show_what_the_orders_forbid_only_without_them() {
    run("litmus", "");
}

#[test]
fn the_matrix_product_is_the_plain_one() {
    run("busy", "");
}

#[test]
fn random_reads_read_the_given_addresses() {
    run("roofline", "");
}

#[test]
fn v0_matches_a_plain_loop() {
    run("gather", "v0");
}

#[test]
fn v1_matches_a_plain_loop() {
    run("gather", "v1");
}

#[test]
fn v2_matches_a_plain_loop() {
    run("gather", "v2");
}

#[test]
fn v3_matches_a_plain_loop() {
    run("gather", "v3");
}

#[test]
fn v4_matches_a_plain_loop() {
    run("gather", "v4");
}

#[test]
fn v5_with_one_row_in_flight_matches_a_plain_loop() {
    run("gather", "v5 with one");
}

#[test]
fn v5_with_two_rows_in_flight_matches_a_plain_loop() {
    run("gather", "v5 with two");
}

#[test]
fn v6_matches_a_plain_loop() {
    run("gather", "v6");
}

#[test]
fn rows_past_two_to_the_31_bytes_are_found() {
    run("gather", "rows past");
}

#[test]
fn no_schedule_changes_a_byte() {
    run("gather", "schedules");
}

#[test]
fn aligned_requests_read_each_line_once() {
    run("gather", "requests from");
}
