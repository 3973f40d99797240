//! Slow readers, in a separate process because these tests measure its memory.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod place;
    mod slow;
}
