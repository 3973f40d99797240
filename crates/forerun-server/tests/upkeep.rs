//! What a server does beside answering. A process of its own: it measures memory.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    mod place;
    mod upkeep;
}
