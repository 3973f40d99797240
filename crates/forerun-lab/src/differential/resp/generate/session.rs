//! Generates transactions, and commands about connections and the server.

use super::{Command, Generator, Kind, Words};

/// Commands about the connection or the server, which change nothing on either.
const QUESTIONS: [&str; 39] = [
    "PING",
    "PING hello",
    "PING a b",
    "ECHO hello",
    "SELECT 0",
    "SELECT 1",
    "SELECT 16",
    "SELECT x",
    "SELECT -1",
    "CLIENT ID",
    "CLIENT GETNAME",
    "CLIENT SETNAME name",
    "CLIENT LIST",
    "CLIENT INFO",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT x",
    "CLIENT FOO",
    "CONFIG GET foo",
    "CONFIG RESETSTAT",
    "CONFIG FOO",
    "INFO",
    "INFO server",
    "INFO memory stats",
    "INFO foo",
    "INFO replication",
    "COMMAND COUNT",
    "COMMAND INFO get MSET foo",
    "COMMAND DOCS foo",
    "COMMAND GETKEYS GET a",
    "COMMAND GETKEYS MSET a 1 b 2",
    "COMMAND GETKEYS PING x",
    "COMMAND FOO",
    "ACL WHOAMI",
    "SLOWLOG LEN",
    "SLOWLOG RESET",
    "LATENCY LATEST",
    "LATENCY RESET",
    "ROLE",
    "TIME",
];

/// Commands that change the connection.
const HANDSHAKES: [&str; 15] = [
    "HELLO",
    "HELLO 2",
    "HELLO 3",
    "HELLO 3",
    "HELLO 3 SETNAME name",
    "HELLO 4",
    "HELLO x",
    "HELLO 3 FOO",
    "HELLO 3 SETNAME",
    "RESET",
    "CLIENT REPLY x",
    "AUTH x",
    "AUTH default x",
    "AUTH foo x",
    "HELLO 2 AUTH default x",
];

impl Generator {
    /// Appends a part of a transaction, or a whole one.
    pub(super) fn push_transaction(&mut self, connection: usize, commands: &mut Vec<Command>) {
        if self.in_transaction[connection] && self.chance(0.6) {
            self.in_transaction[connection] = false;
            let name = self.pick(&["EXEC", "EXEC", "EXEC", "DISCARD"]);
            let command = self.spelled(Words::of(name));
            commands.push(command);
            return;
        }
        // Within a transaction, Valkey treats them differently.
        let may_nest = !self.in_transaction[connection] || !self.has(Kind::Valkey);
        match self.below(10) {
            0..=2 if may_nest => {
                let keys = self.several(4, Self::any_key);
                let command = self.spelled(Words::of("WATCH").add_all(keys));
                commands.push(command);
            }
            3 => commands.push(Command::array(Words::of("UNWATCH").0)),
            4 => {
                let name = self.pick(&["EXEC", "DISCARD", "EXEC x", "MULTI x", "WATCH"]);
                // Without an open transaction these fail; with one, the first two end it.
                if matches!(name, "EXEC" | "DISCARD") {
                    self.in_transaction[connection] = false;
                }
                commands.push(Command::array(Words::of(name).0));
            }
            _ if may_nest => {
                self.in_transaction[connection] = true;
                let command = self.spelled(Words::of("MULTI"));
                commands.push(command);
            }
            _ => {
                let words = self.string();
                commands.push(Command::array(words.0));
            }
        }
    }

    /// Appends commands about the connection or the server.
    pub(super) fn push_session(&mut self, connection: usize, commands: &mut Vec<Command>) {
        let line = match self.below(30) {
            // They work within transactions, too, but the answers would be in either version.
            0..=7 if !self.in_transaction[connection] => self.pick(&HANDSHAKES),
            8..=9 if !self.in_transaction[connection] => {
                return self.push_without_replies(commands);
            }
            10 => "QUIT",
            _ => self.pick(&QUESTIONS),
        };
        let command = self.spelled(Words::of(line));
        commands.push(command);
    }

    /// Commands whose replies `CLIENT REPLY` turns off.
    fn push_without_replies(&mut self, commands: &mut Vec<Command>) {
        if self.chance(0.5) {
            commands.push(Command::array(Words::of("CLIENT REPLY SKIP").0));
            let words = self.string();
            commands.push(Command::array(words.0));
            return;
        }
        commands.push(Command::array(Words::of("CLIENT REPLY OFF").0));
        for _ in 0..self.below(4) {
            let words = self.string();
            commands.push(Command::array(words.0));
        }
        commands.push(Command::array(Words::of("CLIENT REPLY ON").0));
    }
}
