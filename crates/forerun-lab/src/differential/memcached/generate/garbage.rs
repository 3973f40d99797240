//! Generates lines that are not commands, or are almost commands.

use super::{Command, Generator, Word};

impl Generator {
    pub(super) fn garbage(&mut self) -> Command {
        match self.below(5) {
            0 => {
                // A command with a word missing, an extra word, or a repeated one.
                let mut command = self.line_without_block();
                let at = self.below(command.words.len());
                match self.below(3) {
                    0 => drop(command.words.remove(at)),
                    1 => {
                        let word = command.words[at].clone();
                        command.words.insert(at, word);
                    }
                    _ => command
                        .words
                        .insert(at, Word::text(self.pick(&["", "", "900", "noreply", "Q"]))),
                }
                // A version in place of the key would be a different key for each server.
                if let Some(key @ Word::Cas { .. }) = command.words.get_mut(1) {
                    *key = Word::text("5");
                }
                command
            }
            1 => self.too_long(),
            2 => {
                // A name in another case, or a part of a name.
                let mut command = self.line_without_block();
                if let Some(Word::Text(name)) = command.words.first_mut() {
                    match name.len() % 2 {
                        0 => name.make_ascii_uppercase(),
                        _ => name.truncate(name.len() - 1),
                    }
                }
                command
            }
            3 => {
                let line = self.pick(&[
                    "",
                    " ",
                    "\r",
                    "\0",
                    "\0get a",
                    "get",
                    "gets",
                    "get ",
                    "gat",
                    "gat 0",
                    "gat x a",
                    "set",
                    "set a",
                    "set a 0 0",
                    "ms",
                    "mg",
                    "md",
                    "ma",
                    "ms a",
                    "ms a x",
                    "ms a -1",
                    "incr a",
                    "touch a",
                    "delete",
                    "flush_all x",
                    "GET a",
                    "get\ta",
                    "x y z",
                    "ms a S5",
                    "mg a\tv",
                    "stats\t",
                    "quit now",
                    "mn\r",
                    "ms a 2147483647x",
                ]);
                Command::line(line.split(' ').map(Word::text).collect())
            }
            _ => {
                let len = 1 + self.below(30);
                let mut bytes: Vec<u8> = (0..len).map(|_| self.below(256) as u8).collect();
                bytes.retain(|&byte| byte != b'\n');
                // A first byte of 0x80 on a new connection selects another protocol.
                if bytes.first().is_none_or(|&byte| byte == 0x80) {
                    bytes.insert(0, b'x');
                }
                Command::line(vec![Word::Text(bytes)])
            }
        }
    }

    /// A line with a key that is too long.
    pub(super) fn too_long(&mut self) -> Command {
        let name = if self.is_later() {
            self.pick(&["mg", "md", "ma", "me", "delete", "incr", "touch"])
        } else {
            self.pick(&[
                "get", "gets", "mg", "md", "ma", "me", "delete", "incr", "touch", "gat 0",
            ])
        };
        let len = 251 + self.below(10);
        let rest = match (name, self.is_later()) {
            ("incr" | "touch", true) => " 5",
            (_, true) => "",
            _ => self.pick(&["", " 5", " v", " q", " a", " 5 noreply"]),
        };
        let line = format!("{name} {}{rest}", "k".repeat(len));
        Command::line(line.split(' ').map(Word::text).collect())
    }

    /// A short line without a data block: under another name, memcached does not wait for the rest
    /// of a long line.
    fn line_without_block(&mut self) -> Command {
        loop {
            let command = match self.below(2) {
                0 => self.classic(),
                _ => self.meta(),
            };
            let is_short = command.words.iter().map(Word::len_max).sum::<usize>() < 1000;
            if command.block.is_none() && is_short {
                return command;
            }
        }
    }
}
