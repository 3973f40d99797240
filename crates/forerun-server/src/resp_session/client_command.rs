//! `CLIENT`: names and describes connections.

use std::collections::HashSet;

use crate::resp::client_names::{ClientName, is_name};
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;

use super::call::Call;
use super::{Replies, RespSession};

impl RespSession {
    pub(super) fn client_command(&mut self, call: &mut Call<'_, '_>) {
        match call.subcommand() {
            None => {}
            Some("id") => call.number(call.context.connection as i64),
            Some("getname") => match self.login.client().name {
                name if name.is_empty() => call.nil(),
                name => call.bulk(&name),
            },
            Some("setname") => {
                let name = call.argument(2);
                self.set_name(call, name, |client| &mut client.name);
            }
            Some("setinfo") => {
                let value = call.argument(3);
                if call.is_word(2, "lib-name") {
                    self.set_name(call, value, |client| &mut client.library);
                } else if call.is_word(2, "lib-ver") {
                    self.set_name(call, value, |client| &mut client.library_version);
                } else {
                    let mut text = b"ERR Unrecognized option '".to_vec();
                    let option = call.argument(2);
                    text.extend_from_slice(&option[..option.len().min(128)]);
                    text.push(b'\'');
                    call.error(text);
                }
            }
            Some("info") => {
                let own = call.context.connection;
                let lines = client_lines(call, |connection| connection == own);
                let protocol = call.protocol;
                protocol.push_verbatim(call.out(), lines.as_bytes());
            }
            Some("list") => self.client_list(call),
            Some("no-evict" | "no-touch") => match call.argument(2).to_ascii_lowercase().as_slice()
            {
                b"on" | b"off" => call.ok(),
                _ => call.error(texts::SYNTAX),
            },
            Some("reply") => match call.argument(2).to_ascii_lowercase().as_slice() {
                b"on" => {
                    self.replies = Replies::On;
                    call.ok();
                }
                b"off" => self.replies = Replies::Off,
                b"skip" if self.replies == Replies::Off => {}
                b"skip" => self.replies = Replies::Skip,
                _ => call.error(texts::SYNTAX),
            },
            Some(_) => call.help(),
        }
    }

    fn set_name(
        &mut self,
        call: &mut Call<'_, '_>,
        name: &[u8],
        place: impl FnOnce(&mut ClientName) -> &mut Vec<u8>,
    ) {
        if !is_name(name) {
            return call.error(texts::CLIENT_NAME);
        }
        self.login.change(|client| *place(client) = name.to_vec());
        call.ok();
    }

    /// `CLIENT LIST [TYPE type] [ID id…]`.
    fn client_list(&mut self, call: &mut Call<'_, '_>) {
        let mut wanted: Option<HashSet<u64>> = None;
        match call.arguments.get(2..).unwrap_or_default() {
            [] => {}
            [word, kind] if word.eq_ignore_ascii_case(b"type") => {
                match kind.to_ascii_lowercase().as_slice() {
                    b"normal" => {}
                    b"master" | b"replica" | b"slave" | b"pubsub" => wanted = Some(HashSet::new()),
                    _ => {
                        let mut text = b"ERR Unknown client type '".to_vec();
                        text.extend_from_slice(&kind[..kind.len().min(128)]);
                        text.push(b'\'');
                        return call.error(text);
                    }
                }
            }
            [word, ids @ ..] if word.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let ids = ids.iter().map(|id| u64::try_from(parse_i64(id)?).ok());
                match ids.collect() {
                    Some(ids) => wanted = Some(ids),
                    None => return call.error("ERR Invalid client ID"),
                }
            }
            _ => return call.error(texts::SYNTAX),
        }
        let lines = client_lines(call, |connection| {
            wanted.as_ref().is_none_or(|ids| ids.contains(&connection))
        });
        let protocol = call.protocol;
        protocol.push_verbatim(call.out(), lines.as_bytes());
    }
}

/// A line for each client of RESP whose connection is wanted.
fn client_lines(call: &Call<'_, '_>, is_wanted: impl Fn(u64) -> bool) -> String {
    let shared = call.context.shared;
    let own = call.context.connection;
    let (mut lines, mut last) = (String::new(), None);
    let mut line = Line::default();
    let finish = |lines: &mut String, number: u64, line: &Line| {
        let client = match shared.resp.clients.get(number) {
            Some(client) if is_wanted(number) => client,
            _ => return,
        };
        *lines += &line.with(number, &client);
    };
    shared
        .server
        .describe_connections(&mut |number, name, value| {
            if last.is_some_and(|last| last != number) {
                finish(&mut lines, last.unwrap_or_default(), &line);
                line = Line::default();
            }
            last = Some(number);
            match name {
                "addr" => line.address = without_kind(value).to_owned(),
                "listen_addr" => line.listener = without_kind(value).to_owned(),
                "secs_since_last_cmd" => line.idle_s = value.to_owned(),
                "age_s" => line.age_s = value.to_owned(),
                "input_bytes" => line.input_bytes = value.to_owned(),
                "output_bytes" => line.output_bytes = value.to_owned(),
                _ => {}
            }
        });
    // A session without a server has nobody who describes its connection.
    finish(&mut lines, last.unwrap_or(own), &line);
    lines
}

/// An address without the kind of its socket.
fn without_kind(address: &str) -> &str {
    let kinds = ["tcp:", "tcp6:", "ucx:"];
    kinds
        .iter()
        .find_map(|kind| address.strip_prefix(kind))
        .unwrap_or(address)
}

/// What the server knows of a connection.
#[derive(Default)]
struct Line {
    address: String,
    listener: String,
    idle_s: String,
    age_s: String,
    input_bytes: String,
    output_bytes: String,
}

impl Line {
    fn with(&self, number: u64, client: &ClientName) -> String {
        let Line {
            address, listener, ..
        } = self;
        let known = |value: &String| match value.as_str() {
            "" => "0".to_owned(),
            known => known.to_owned(),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // Programs read the descriptor as a number. Sessions do not know theirs.
        format!(
            "id={number} addr={address} laddr={listener} fd=-1 name={} age={} idle={} flags=N \
             db={} sub=0 psub=0 qbuf={} omem={} cmd={} user={} lib-name={} lib-ver={} resp={}\n",
            text(&client.name),
            known(&self.age_s),
            known(&self.idle_s),
            client.database,
            known(&self.input_bytes),
            known(&self.output_bytes),
            client.last_command.name(),
            text(&client.user),
            text(&client.library),
            text(&client.library_version),
            client.protocol,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_client::{TestClient, request};

    #[test]
    fn a_line_has_the_fields_that_programs_read() {
        let mut client = TestClient::new();
        let mut field = |command: &str, name: &str| {
            let answer = client.ask(command);
            let (_, line) = answer.split_once("\r\n").expect("a text");
            let fields = line
                .trim_end()
                .split(' ')
                .map(|field| field.split_once('='));
            let mut fields = fields.map(|field| field.expect("a name and a value"));
            let found = fields.find(|(known, _)| *known == name).expect(name);
            found.1.to_owned()
        };
        for name in ["id", "fd", "age", "idle", "db", "qbuf", "omem", "resp"] {
            let value = field("CLIENT LIST", name);
            assert!(value.parse::<i64>().is_ok(), "{name}={value}");
        }
        assert_eq!(field("CLIENT LIST", "cmd"), "client|list");
        assert_eq!(field("CLIENT INFO", "cmd"), "client|info");
    }

    #[test]
    fn the_command_of_a_batch_is_its_last_one() {
        let mut client = TestClient::new();
        client.context.connection = 1;
        client.send(&[request(&[b"GET", b"a"]), request(&[b"TTL", b"a"])].concat());
        let clients = &client.context.shared().resp.clients;
        let last = clients.get(1).map(|client| client.last_command.name());
        assert_eq!(last.as_deref(), Some("ttl"));
    }
}
