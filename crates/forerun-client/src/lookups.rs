//! Batches of lookups, each one round trip to all servers.

use std::collections::VecDeque;

use forerun_core::sync::time;

use crate::connection_set::parts;
use crate::conversation::{KEYS_PER_LINE, LookupBatch, LookupConversation, LookupFormat};
use crate::error::{Error, Failure};
use crate::net::Connection;
use crate::options::Protocol;
use crate::protocol::compose::{self, LookupKind};
use crate::ring_client::Client;
use crate::round::{self, Turn};
use crate::values::{Report, ServerFailure, Sink};
use crate::wait::Wait;

impl Client {
    /// Looks up a checked batch.
    pub(crate) async fn look_up<K: AsRef<[u8]>, S: Sink, W: Wait>(
        &self,
        keys: &[K],
        kind: LookupKind,
        sink: &mut S,
        wait: &W,
    ) -> Result<Report, Error> {
        let start = time::now();
        let mut set = self.take_set(start);
        let mut positions = std::mem::take(&mut set.positions);
        self.group(keys, &mut positions, start);
        let mut report = Report::default();
        let mut batch = LookupBatch {
            keys,
            order: &positions.order,
            answered: &mut positions.answered,
            sink,
            report: &mut report,
        };
        let mut turns = Vec::with_capacity(self.servers().len());
        let mut failures = Vec::new();
        for (server, part) in parts(&positions.begins) {
            let keys = positions.order[part.clone()].iter();
            let keys = keys.map(|at| batch.keys[*at as usize].as_ref());
            match self.begin(server, keys.clone(), &mut set, start) {
                Ok((mut connection, peers)) => {
                    let format = self.compose(&mut connection, keys, kind);
                    let conversation = LookupConversation::new(part, format);
                    let mut turn = Turn::new(server, connection, conversation, peers);
                    // Send the request at once, so that the server works while the next one is
                    // composed.
                    turn.send();
                    turns.push(turn);
                }
                Err(failure) => {
                    self.record(server, Some(&failure), start);
                    let conversation = LookupConversation::new(part, LookupFormat::Classic);
                    failures.push((server, conversation, failure));
                }
            }
        }
        round::run(&mut turns, &mut batch, &self.round_options(start), wait).await;
        for turn in turns {
            let server = turn.server;
            if let (conversation, Some(failure)) = self.end(turn, &mut set, start) {
                failures.push((server, conversation, failure));
            }
        }
        let mut is_interrupted = false;
        for (server, conversation, failure) in failures {
            is_interrupted |= matches!(failure, Failure::Interrupted);
            let keys = conversation.fail(&mut batch);
            let server = self.servers()[server].to_string();
            let failure = ServerFailure::new(server, keys, failure);
            batch.report.failures.push(failure);
        }
        set.positions = positions;
        self.put_set(set);
        report.misses = keys.len() - report.hits - report.failed - report.oversized;
        self.counters().looked_up(&report);
        if is_interrupted {
            Err(Error::Interrupted)
        } else {
            Ok(report)
        }
    }

    /// Composes the lookups of one server.
    fn compose<'k>(
        &self,
        connection: &mut Connection,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
        kind: LookupKind,
    ) -> LookupFormat {
        let first = connection.next_opaque;
        // A frame cannot touch items.
        if self.protocol() == Protocol::MultiGet && kind.touch.is_none() {
            let mut counts = VecDeque::new();
            let mut rest = keys;
            while rest.len() > 0 {
                let count = connection.push_frame(rest.clone(), kind.cas);
                counts.push_back(count);
                rest.nth(count.saturating_sub(1));
            }
            return LookupFormat::Frames {
                id: first,
                counts,
                with_cas: kind.cas,
            };
        }
        if self.has_opaques() {
            connection.next_opaque = first.wrapping_add(keys.len() as u32);
            let output = connection.output();
            let mut opaque = first;
            for key in keys {
                compose::meta_lookup(key, kind, opaque, output);
                opaque = opaque.wrapping_add(1);
            }
            output.extend_from_slice(compose::META_END);
            return LookupFormat::Meta { first };
        }
        let output = connection.output();
        let last = keys.len() - 1;
        for (at, key) in keys.enumerate() {
            if at % KEYS_PER_LINE == 0 {
                compose::begin_lookup(kind, output);
            }
            output.push(b' ');
            output.extend_from_slice(key);
            if at % KEYS_PER_LINE == KEYS_PER_LINE - 1 || at == last {
                output.extend_from_slice(b"\r\n");
            }
        }
        LookupFormat::Classic
    }
}
