//! Slow readers, in a separate process because these tests measure the memory of the process.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod multi_get_frames;
    mod slow;
    #[allow(dead_code, reason = "each test uses its part")]
    mod test_server;
}
