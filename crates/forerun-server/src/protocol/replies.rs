//! Fixed answers, with their line ends.

pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub(crate) const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
pub(crate) const BAD_MODE_MA: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
pub(crate) const BAD_MODE_MS: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
pub(crate) const BAD_OPAQUE: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
pub(crate) const CRAWLER_DISABLED: &[u8] = b"CLIENT_ERROR lru crawler disabled\r\n";
pub(crate) const DELETED: &[u8] = b"DELETED\r\n";
pub(crate) const END: &[u8] = b"END\r\n";
pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const EXISTS: &[u8] = b"EXISTS\r\n";
pub(crate) const FILLED: &[u8] = b"FILLED\r\n";
pub(crate) const FLAG_UNKNOWN_OR_TWICE: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
pub(crate) const FLAGS_TOO_MANY: &[u8] = b"CLIENT_ERROR options flags too long\r\n";
pub(crate) const FLAGS_TOO_MANY_MG: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
pub(crate) const META_END: &[u8] = b"EN\r\n";
pub(crate) const META_NOOP: &[u8] = b"MN\r\n";
pub(crate) const NOT_A_NUMBER: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(crate) const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
pub(crate) const NOT_FILLED: &[u8] = b"NOT_FILLED\r\n";
pub(crate) const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
pub(crate) const NOT_WARMING: &[u8] =
    b"CLIENT_ERROR the server is not being warmed up with this token\r\n";
pub(crate) const OK: &[u8] = b"OK\r\n";
pub(crate) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";
pub(crate) const OUT_OF_MEMORY_STORING: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(crate) const OUT_OF_MEMORY_VIVIFYING: &[u8] =
    b"SERVER_ERROR Out of memory allocating new item\r\n";
pub(crate) const STORED: &[u8] = b"STORED\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const TOUCHED: &[u8] = b"TOUCHED\r\n";
