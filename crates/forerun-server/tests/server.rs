//! The server over real sockets. Each test has its own server and a time limit.

mod server {
    mod certificates;
    mod connections;
    mod ending;
    mod lingering;
    #[allow(dead_code, reason = "each test uses its part")]
    mod multi_get_frames;
    mod snapshots;
    mod starting;
    mod test_server;
    mod tls_and_users;
}
