//! The server over real sockets, each test with a server of its own and a bounded time.

mod server {
    mod connections;
    mod ending;
    mod papers;
    mod place;
    mod secrets;
    mod snapshots;
}
