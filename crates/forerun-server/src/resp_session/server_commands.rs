//! Commands about the server that have short answers.

use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;
use crate::resp::reply;

use super::call::Call;

impl Call<'_, '_> {
    /// `TIME`: seconds since 1970 and microseconds.
    pub(super) fn time(&mut self) {
        let unix_ms = self.context.shared.unix_now_ms();
        self.array(2);
        self.bulk((unix_ms / 1000).to_string().as_bytes());
        self.bulk((unix_ms % 1000 * 1000).to_string().as_bytes());
    }

    /// `ROLE`.
    pub(super) fn role(&mut self) {
        self.array(3);
        self.bulk(b"master");
        self.number(0);
        self.array(0);
    }

    /// `SLOWLOG GET [n] | LEN | RESET`: the server keeps no such log.
    pub(super) fn slowlog(&mut self) {
        match self.subcommand() {
            None => {}
            Some("get") => match self.arguments {
                [_, _] => self.array(0),
                [_, _, count] if parse_i64(count).is_some_and(|count| count >= -1) => self.array(0),
                [_, _, _] => self.error(texts::SLOWLOG_COUNT),
                _ => self.error(texts::wrong_count("slowlog|get")),
            },
            Some("len") => self.number(0),
            Some("reset") => self.ok(),
            Some(_) => self.help(),
        }
    }

    /// `LATENCY LATEST | HISTOGRAM | RESET`: the server records no such events. Its metrics have
    /// histograms.
    pub(super) fn latency(&mut self) {
        let protocol = self.protocol;
        match self.subcommand() {
            None => {}
            Some("latest") => self.array(0),
            Some("histogram") => protocol.push_map(self.out(), 0),
            Some("reset") => self.number(0),
            Some(_) => self.help(),
        }
    }

    /// Appends the pairs of a map of texts.
    pub(super) fn text_map(&mut self, pairs: &[(&str, String)]) {
        let protocol = self.protocol;
        let out = self.out();
        protocol.push_map(out, pairs.len());
        for (name, value) in pairs {
            reply::push_bulk(out, name.as_bytes());
            reply::push_bulk(out, value.as_bytes());
        }
    }
}
