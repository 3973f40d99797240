//! A fork of the process does not use its parent's connections.

mod testing;

use forerun_client::Error;
use testing::{client_of, forerun, options};

#[test]
fn a_forked_child_gets_an_error_and_sends_nothing() {
    let servers = [forerun()];
    let client = client_of(&servers, options());
    client.set("k", "v").expect("stored");
    // SAFETY: the child only calls the client, which returns before it takes a lock, and then exits
    // without running any destructor of the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |error: Error| matches!(error, Error::Forked(_));
        let all = client.get("k").is_err_and(forked)
            && testing::multi_get(&client, &["k"]).is_err_and(forked)
            && client.set("k", "w").is_err_and(forked)
            && client.flush_all().is_err_and(forked);
        // SAFETY: `_exit` ends the child and runs no destructors.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child used the client");
    assert_eq!(
        client
            .get("k")
            .expect("it answers")
            .expect("it is there")
            .data,
        b"v"
    );
}
