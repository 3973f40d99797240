//! The server over real sockets. Each test has its own server and a time limit.

mod server {
    mod connections;
    mod ending;
    mod papers;
    mod secrets;
    mod snapshots;
    mod test_server;
}
