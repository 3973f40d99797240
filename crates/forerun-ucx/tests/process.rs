//! What loading UCX does to a process: no signal handlers, no output, and forks stay harmless.

mod testing;

use std::fs;
use std::io::{self, Write};
use std::process::Command;

use forerun_ucx::{Context, ContextOptions, UcxError};
use testing::{again_with, hub, pair_of, ucx};

/// The signals that this process handles.
fn handled() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    u64::from_str_radix(line.unwrap_or("0").trim(), 16).expect("a mask")
}

#[test]
fn loading_installs_no_signal_handlers() {
    if ucx().is_some() {
        // In a process of its own: another test may have loaded UCX here.
        again_with("posix,self", &["in_a_new_process"]);
    }
}

#[test]
fn in_a_new_process() {
    let before = handled();
    let Some(context) = ucx() else { return };
    let _pair = pair_of(&[hub(&context), hub(&context)], 8);
    assert_eq!(handled(), before);
}

#[test]
fn segments_of_shared_memory_are_for_their_owner_and_go_with_the_process() {
    use std::os::unix::fs::PermissionsExt;

    let Some(context) = ucx() else { return };
    let _pair = pair_of(&[hub(&context), hub(&context)], 8);
    let maps = fs::read_to_string("/proc/self/maps").expect("a map");
    assert!(!maps.contains("SYSV"), "no System V segment");
    for entry in fs::read_dir("/dev/shm").expect("a directory").flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("ucx_shm_posix")
            && let Ok(found) = entry.metadata()
        {
            assert_eq!(found.permissions().mode() & 0o077, 0, "{entry:?}");
        }
    }
}

#[test]
fn a_wrong_configuration_is_reported() {
    if ucx().is_none() {
        return;
    }
    let program = std::env::current_exe().expect("this executable");
    let ran = Command::new(program)
        .args(["--exact", "--nocapture", "a_transport_that_does_not_exist"])
        .env("UCX_TLS", "carrier_pigeon")
        .env("FORERUN_UCX_EXPECTS_FAILURE", "1")
        .output()
        .expect("it runs");
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
    assert!(
        !output.contains("UCX  "),
        "UCX does not write to the output: {output}"
    );
}

#[test]
fn a_transport_that_does_not_exist() {
    if std::env::var_os("FORERUN_UCX_EXPECTS_FAILURE").is_none() {
        return;
    }
    let error = Context::open(&ContextOptions::default()).expect_err("no such transport");
    let _ = writeln!(io::stdout(), "{error}");
    assert!(
        matches!(
            error,
            UcxError::Call {
                call: "ucp_init",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_fork_touches_nothing_of_its_parent() {
    let Some(context) = ucx() else { return };
    let hubs = [hub(&context), hub(&context)];
    let [mut left, mut right] = pair_of(&hubs, 8);
    left.send(b"before", || right.progress());
    // SAFETY: the other threads hold no lock that the child needs, and it exits without running
    // any other destructor of the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = matches!(forerun_ucx::Hub::new(&context), Err(UcxError::Forked(_)))
            && left.stream.write(b"from the child").is_err()
            && !right.progress();
        drop((left, right, hubs, context));
        // SAFETY: `_exit` ends the child and runs no destructors.
        unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child used UCX");
    assert_eq!(right.wait().expect("open"), b"before");
    right.send(b"after", || left.progress());
    assert_eq!(left.wait().expect("open"), b"after");
}
