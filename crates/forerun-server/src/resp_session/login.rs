//! Who the client is: its login, its name, and the version of the protocol that it asks for.

use std::mem;

use crate::resp::client_names::{ClientName, LastCommand, NamedClient, is_name};
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;
use crate::resp::reply::{self, RespVersion};
use crate::session::CommandContext;

use super::call::Call;

/// The user of a connection that need not or did not log in by name.
const DEFAULT_USER: &[u8] = b"default";

/// What a session knows of its client.
#[derive(Debug)]
pub(super) struct Login {
    has_users: bool,
    /// Who has logged in, if the server has users.
    user: Option<Vec<u8>>,
    /// The client's entry, from its first command on.
    client: Option<NamedClient>,
}

impl Login {
    pub(super) fn new(has_users: bool) -> Login {
        Login {
            has_users,
            user: None,
            client: None,
        }
    }

    /// Whether the client may send any command.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.has_users || self.user.is_some()
    }

    /// Notes that the client has sent a command.
    #[inline]
    pub(super) fn meet(&mut self, protocol: RespVersion, context: &CommandContext<'_>) {
        if self.client.is_none() {
            let client = context.shared.resp.clients.add(context.connection);
            client.change(|client| {
                client.protocol = protocol.number();
                client.user = DEFAULT_USER.to_vec();
            });
            self.client = Some(client);
        }
    }

    /// Notes which command the client has sent.
    #[inline]
    pub(super) fn note(&self, command: LastCommand) {
        if let Some(client) = &self.client {
            client.note(command);
        }
    }

    /// Makes the connection like a new one, of the same library.
    pub(super) fn reset(&mut self) {
        self.user = None;
        self.change(|client| {
            *client = ClientName {
                protocol: RespVersion::Resp2.number(),
                user: DEFAULT_USER.to_vec(),
                name: Vec::new(),
                database: 0,
                ..mem::take(client)
            };
        });
    }

    /// The user's name.
    pub(super) fn user(&self) -> &[u8] {
        self.user.as_deref().unwrap_or(DEFAULT_USER)
    }

    /// What the client has said.
    pub(super) fn client(&self) -> ClientName {
        self.client
            .as_ref()
            .map(NamedClient::get)
            .unwrap_or_default()
    }

    /// Changes what the client has said.
    pub(super) fn change(&self, change: impl FnOnce(&mut ClientName)) {
        if let Some(client) = &self.client {
            client.change(change);
        }
    }

    /// `AUTH [user] password`.
    pub(super) fn auth(&mut self, call: &mut Call<'_, '_>) {
        let (user, password) = match call.arguments {
            [_, password] => {
                if !self.has_users {
                    return call.error(texts::AUTH_WITHOUT_USERS);
                }
                (DEFAULT_USER, *password)
            }
            [_, user, password] => (*user, *password),
            _ => return call.error(texts::SYNTAX),
        };
        if self.log_in(user, password, call) {
            call.ok()
        } else {
            call.error(texts::WRONG_PASS)
        }
    }

    /// Logs a user in. Returns false if the password is wrong.
    fn log_in(&mut self, user: &[u8], password: &[u8], call: &Call<'_, '_>) -> bool {
        let counters = call.context.counters;
        counters.auth_cmds.add(1);
        let is_known = match call.context.users {
            Some(users) if self.has_users => users.knows(user, password),
            // Without users, the default user has any password.
            _ => !self.has_users && user == DEFAULT_USER,
        };
        counters.auth_errors.add(u64::from(!is_known));
        if is_known && self.has_users {
            self.user = Some(user.to_vec());
            self.change(|client| client.user = user.to_vec());
        }
        is_known
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`. Returns the version that the client
    /// has chosen.
    pub(super) fn hello(&mut self, call: &mut Call<'_, '_>) -> Option<RespVersion> {
        let mut protocol = call.protocol;
        let (mut login, mut name) = (None, None);
        if let Some(version) = call.arguments.get(1) {
            protocol = match parse_i64(version) {
                Some(2) => RespVersion::Resp2,
                Some(3) => RespVersion::Resp3,
                Some(_) => {
                    call.error(texts::NO_PROTO);
                    return None;
                }
                None => {
                    call.error(texts::PROTOCOL_NOT_INTEGER);
                    return None;
                }
            };
        }
        let mut rest = call.arguments.get(2..).unwrap_or_default();
        while let [option, behind @ ..] = rest {
            rest = match behind {
                [user, password, behind @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                    login = Some((*user, *password));
                    behind
                }
                [given, behind @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                    if !is_name(given) {
                        call.error(texts::CLIENT_NAME);
                        return None;
                    }
                    name = Some(*given);
                    behind
                }
                _ => {
                    let mut text = b"ERR Syntax error in HELLO option '".to_vec();
                    text.extend_from_slice(&option[..option.len().min(128)]);
                    text.push(b'\'');
                    call.error(text);
                    return None;
                }
            };
        }
        if let Some((user, password)) = login
            && !self.log_in(user, password, call)
        {
            call.error(texts::WRONG_PASS);
            return None;
        }
        if !self.is_open() {
            call.error(texts::NO_AUTH_HELLO);
            return None;
        }
        if let Some(name) = name {
            self.change(|client| client.name = name.to_vec());
        }
        self.change(|client| client.protocol = protocol.number());
        call.protocol = protocol;
        push_greeting(call);
        Some(protocol)
    }

    /// `ACL WHOAMI`.
    pub(super) fn acl(&mut self, call: &mut Call<'_, '_>) {
        match call.subcommand() {
            Some("whoami") => call.bulk(self.user()),
            Some(_) => call.help(),
            None => {}
        }
    }
}

/// Describes the server, as the answer to `HELLO`.
fn push_greeting(call: &mut Call<'_, '_>) {
    let (protocol, connection) = (call.protocol, call.context.connection as i64);
    let version = call.context.shared.settings.redis_version.clone();
    let out = call.out();
    protocol.push_map(out, 7);
    let pair = |out: &mut Vec<u8>, name: &str, value: &str| {
        reply::push_bulk(out, name.as_bytes());
        reply::push_bulk(out, value.as_bytes());
    };
    pair(out, "server", "redis");
    pair(out, "version", &version);
    reply::push_bulk(out, b"proto");
    reply::push_integer(out, protocol.number());
    reply::push_bulk(out, b"id");
    reply::push_integer(out, connection);
    pair(out, "mode", "standalone");
    pair(out, "role", "master");
    reply::push_bulk(out, b"modules");
    reply::push_array(out, 0);
}
