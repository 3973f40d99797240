//! The server over real sockets. Each test has its own server and a time limit.

mod server {
    mod certificates;
    mod connections;
    mod ending;
    mod snapshots;
    mod test_server;
    mod tls_and_users;
}
