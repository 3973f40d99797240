//! The server over real sockets. Each test has its own server and a time limit.

#[allow(dead_code, reason = "each test uses its part")]
#[path = "testing/packets.rs"]
mod packets;

mod server {
    mod binary_clients;
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
