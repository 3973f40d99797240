//! Watchers, over real sockets and compared with memcached.

mod testing;

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod test_server;
    mod watch;
}
