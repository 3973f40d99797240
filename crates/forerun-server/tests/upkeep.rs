//! Background work of a server, in a separate process because the tests measure memory.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod test_server;
    mod upkeep;
}
