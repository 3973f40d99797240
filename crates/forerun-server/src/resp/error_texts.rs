//! Fixed refusals, in the words of Redis, which clients compare. Each begins behind the `-` and
//! ends before the line end.

pub(crate) const AUTH_WITHOUT_USERS: &str = "ERR AUTH <password> called without any \
    password configured for the default user. Are you sure your configuration is correct?";
pub(crate) const CLIENT_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";
pub(crate) const CLUSTER_DISABLED: &str = "ERR This instance has cluster support disabled";
pub(crate) const DB_INDEX: &str = "ERR DB index is out of range";
pub(crate) const DECR_OVERFLOW: &str = "ERR decrement would overflow";
pub(crate) const DISCARD_WITHOUT_MULTI: &str = "ERR DISCARD without MULTI";
pub(crate) const EXEC_ABORT: &str = "EXECABORT Transaction discarded because of previous errors.";
pub(crate) const EXEC_COUNT: &str =
    "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
pub(crate) const EXEC_TOO_LARGE: &str =
    "EXECABORT Transaction discarded because it goes over too many bytes of items.";
pub(crate) const EXEC_WITHOUT_MULTI: &str = "ERR EXEC without MULTI";
pub(crate) const EXPIRE_GT_LT: &str = "ERR GT and LT options at the same time are not compatible";
pub(crate) const EXPIRE_NX: &str =
    "ERR NX and XX, GT or LT options at the same time are not compatible";
pub(crate) const DISABLED: &str = "ERR this command is disabled by the server's options";
pub(crate) const FIELDS_COUNT: &str =
    "ERR numfields should be greater than 0 and match the provided number of fields";
pub(crate) const FIELDS_TOO_LARGE: &str =
    "ERR the answer repeats fields and is larger than this server allows";
pub(crate) const FREQ_NOT_TRACKED: &str = "ERR An LFU maxmemory policy is not selected, \
    access frequency not tracked. Please note that when switching between policies at \
    runtime LRU and LFU data will take some time to adjust.";
pub(crate) const HASH_NOT_FLOAT: &str = "ERR hash value is not a float";
pub(crate) const HASH_NOT_INTEGER: &str = "ERR hash value is not an integer";
pub(crate) const INCR_OVERFLOW: &str = "ERR increment or decrement would overflow";
pub(crate) const INVALID_CURSOR: &str = "ERR invalid cursor";
pub(crate) const KEY_TOO_LONG: &str = "ERR key is longer than this server's limit";
pub(crate) const MULTI_NESTED: &str = "ERR MULTI calls can not be nested";
pub(crate) const NAN_OR_INFINITY: &str = "ERR increment would produce NaN or Infinity";
pub(crate) const NO_AUTH: &str = "NOAUTH Authentication required.";
pub(crate) const NO_AUTH_HELLO: &str = "NOAUTH HELLO must be called with the client \
    already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used \
    to authenticate the client and select the RESP protocol version at the same time";
pub(crate) const NO_PROTO: &str = "NOPROTO unsupported protocol version";
pub(crate) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const NOT_FLOAT: &str = "ERR value is not a valid float";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NOT_IN_MULTI: &str = "ERR Command not allowed inside a transaction";
pub(crate) const NUMKEYS_INVALID: &str = "ERR invalid numkeys value";
pub(crate) const NUMKEYS_NEGATIVE: &str = "ERR Number of keys can't be negative";
pub(crate) const NUMKEYS_TOO_MANY: &str = "ERR Number of keys can't be greater than number of args";
pub(crate) const OFFSET_RANGE: &str = "ERR offset is out of range";
pub(crate) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(crate) const PATTERN_TOO_LONG: &str = "ERR the pattern is longer than this server allows";
pub(crate) const PROTOCOL_NOT_INTEGER: &str =
    "ERR Protocol version is not an integer or out of range";
pub(crate) const SAME_KEY: &str = "ERR source and destination objects are the same";
pub(crate) const SCRIPT_ARGUMENTS: &str = "ERR the script needs more keys or arguments";
pub(crate) const SCRIPT_UNKNOWN: &str =
    "ERR this server runs only the scripts of lock libraries that it knows, and not this one";
pub(crate) const SLOWLOG_COUNT: &str = "ERR count should be greater than or equal to -1";
pub(crate) const STRING_TOO_LARGE: &str =
    "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const TOO_MANY_ARGUMENTS: &str =
    "ERR too many arguments for a command during which others wait";
pub(crate) const WATCH_IN_MULTI: &str = "ERR WATCH inside MULTI is not allowed";
pub(crate) const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The most bytes of a name that an error repeats, and the most of the list of arguments.
const SHOWN_BYTES_MAX: usize = 128;

/// The part of a text that an error repeats: at most so many bytes, and nothing from a zero on.
fn shown_part(text: &[u8], bytes_max: usize) -> &[u8] {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    &text[..end.min(bytes_max)]
}

/// Refuses a command that does not exist. Clients read this text.
pub(crate) fn unknown_command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut text = b"ERR unknown command '".to_vec();
    let name = arguments.first().copied().unwrap_or_default();
    text.extend_from_slice(shown_part(name, SHOWN_BYTES_MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    let mut shown = Vec::new();
    for argument in arguments.iter().skip(1) {
        if shown.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let room = SHOWN_BYTES_MAX - shown.len();
        shown.push(b'\'');
        shown.extend_from_slice(shown_part(argument, room));
        shown.extend_from_slice(b"' ");
    }
    text.extend_from_slice(&shown);
    text
}

/// Refuses a subcommand that does not exist.
pub(crate) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Vec<u8> {
    let shown = shown_part(subcommand, SHOWN_BYTES_MAX);
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(shown);
    text.extend_from_slice(format!("'. Try {} HELP.", command.to_ascii_uppercase()).as_bytes());
    text
}

/// Refuses a number of arguments. `name` is `get`, or `client|setname`.
pub(crate) fn wrong_count(name: &str) -> Vec<u8> {
    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
}

/// Appends an error. A line end within it would end it too early, so it becomes a space.
pub(crate) fn push_error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    out.extend(text.iter().map(|&byte| match byte {
        b'\r' | b'\n' => b' ',
        byte => byte,
    }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_shown_with_its_first_arguments() {
        let shown = |arguments: &[&[u8]]| {
            let mut out = Vec::new();
            push_error(&mut out, &unknown_command(arguments));
            String::from_utf8(out).expect("a text")
        };
        assert_eq!(
            shown(&[b"FOO", b"a", b"b\r\nc"]),
            "-ERR unknown command 'FOO', with args beginning with: 'a' 'b  c' \r\n"
        );
        assert_eq!(
            shown(&[b"FO\0O", b"a\0b", b"c"]),
            "-ERR unknown command 'FO', with args beginning with: 'a' 'c' \r\n"
        );
        assert_eq!(
            shown(&[b"FOO"]),
            "-ERR unknown command 'FOO', with args beginning with: \r\n"
        );
        let long = [b'x'; 200];
        let many = shown(&[&long, &long, &long]);
        assert_eq!(many.matches('x').count(), 128 + 128);
        let two = shown(&[b"F", &[b'y'; 100], &[b'z'; 100], b"w"]);
        // The second one has the room that the first one leaves.
        assert!(two.contains(&"z".repeat(25)) && !two.contains(&"z".repeat(26)));
        assert!(!two.contains("'w'"));
    }
}
