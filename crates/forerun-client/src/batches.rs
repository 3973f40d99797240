//! Batches of writes. Like a batch of lookups, each is one round trip to all servers.

use crate::connection_set::{ConnectionSet, parts};
use crate::conversation::{Answer, BatchConversation, CommandBatch};
use crate::error::{Error, Failure};
use crate::new_value::NewValue;
use crate::protocol::compose::{Command, StoreMode};
use crate::ring_client::Client;
use crate::round::{self, Turn};
use crate::values::ServerFailure;
use crate::wait::Wait;
use crate::write_report::{Unwritten, WriteReport};

use forerun_core::sync::time;

impl Client {
    /// Stores many values.
    pub(crate) async fn store_all<K: AsRef<[u8]>, W: Wait>(
        &self,
        entries: &[(K, NewValue<'_>)],
        wait: &W,
    ) -> Result<WriteReport, Error> {
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_ref()).collect();
        let command = |at: usize| {
            let value = &entries[at].1;
            Command::Store {
                mode: StoreMode::Set,
                value: value.data,
                flags: value.flags,
                expiry: value.expiry.seconds(),
            }
        };
        self.write_all(&keys, command, wait).await
    }

    /// Deletes many keys.
    pub(crate) async fn delete_all<K: AsRef<[u8]>, W: Wait>(
        &self,
        keys: &[K],
        wait: &W,
    ) -> Result<WriteReport, Error> {
        self.write_all(keys, |_| Command::Delete, wait).await
    }

    /// Sends a command for each key. All commands are of the same kind.
    async fn write_all<'v, K: AsRef<[u8]>, W: Wait>(
        &self,
        keys: &[K],
        command: impl Fn(usize) -> Command<'v>,
        wait: &W,
    ) -> Result<WriteReport, Error> {
        self.check_batch(keys)?;
        self.counters().commands(keys.len());
        let start = time::now();
        let mut set = self.take_set(start);
        let mut positions = std::mem::take(&mut set.positions);
        self.group(keys, &mut positions, start);
        let mut answers = vec![None; keys.len()];
        let mut batch = CommandBatch {
            order: &positions.order,
            answers: &mut answers,
        };
        let (mut turns, mut failures) = (Vec::new(), Vec::new());
        for (server, part) in parts(&positions.begins) {
            let own = positions.order[part.clone()].iter();
            let own = own.map(|at| keys[*at as usize].as_ref());
            match self.begin(server, own, &mut set, start) {
                Ok((mut connection, peers)) => {
                    let first = connection.next_opaque;
                    for at in &positions.order[part.clone()] {
                        let at = *at as usize;
                        self.compose_command(&mut connection, &command(at), keys[at].as_ref());
                    }
                    let opaque = self.has_opaques().then_some(first);
                    let kind = command(positions.order[part.start] as usize);
                    let conversation = BatchConversation::new(part, &kind, opaque);
                    let mut turn = Turn::new(server, connection, conversation, peers);
                    turn.send();
                    turns.push(turn);
                }
                Err(failure) => {
                    self.record(server, Some(&failure), start);
                    failures.push((server, part.len(), failure));
                }
            }
        }
        round::run(&mut turns, &mut batch, &self.round_options(start), wait).await;
        for turn in turns {
            let server = turn.server;
            if let (conversation, Some(failure)) = self.end(turn, &mut set, start) {
                failures.push((server, conversation.unanswered(), failure));
            }
        }
        if self.keeps_failed_deletes() && !keys.is_empty() && matches!(command(0), Command::Delete)
        {
            for (server, part) in parts(&positions.begins) {
                for at in &positions.order[part] {
                    let at = *at as usize;
                    self.deleted(keys[at].as_ref(), server, answers[at].is_some());
                }
            }
        }
        self.put_set(ConnectionSet { positions, ..set });
        self.report(answers, failures)
    }

    fn report(
        &self,
        answers: Vec<Option<Answer>>,
        failures: Vec<(usize, usize, Failure)>,
    ) -> Result<WriteReport, Error> {
        let mut report = WriteReport::default();
        for (server, keys, failure) in failures {
            if matches!(failure, Failure::Interrupted) {
                return Err(Error::Interrupted);
            }
            let server = self.servers()[server].to_string();
            report
                .failures
                .push(ServerFailure::new(server, keys, failure));
        }
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Some(Answer::Done) => report.done += 1,
                Some(Answer::NotFound) => report.not_found += 1,
                Some(Answer::Refused(line)) => {
                    report.unwritten.push((at, Unwritten::Refused(line)));
                }
                // A set or a delete has no other answers.
                Some(answer) => {
                    let line = format!("{answer:?}");
                    report.unwritten.push((at, Unwritten::Refused(line)));
                }
                None => report.unwritten.push((at, Unwritten::Failed)),
            }
        }
        Ok(report)
    }
}
