//! Clients of every speed, in a process of their own: the tests of slow readers measure theirs.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod papers;
    #[allow(dead_code, reason = "each test uses its part")]
    mod place;
    mod speeds;
}
