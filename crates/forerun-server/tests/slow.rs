//! Slow readers, in a separate process because these tests measure the memory of the process.

mod server {
    mod slow;
    #[allow(dead_code, reason = "each test uses its part")]
    mod test_server;
}
