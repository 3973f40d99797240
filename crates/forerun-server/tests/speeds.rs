//! Clients of every speed, in a separate process because they keep both cores busy.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod certificates;
    mod speeds;
    #[allow(dead_code, reason = "each test uses its part")]
    mod test_server;
}
