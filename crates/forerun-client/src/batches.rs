//! Batches of writes: one round trip to all servers, as a batch of lookups.

use crate::connection_set::{ConnectionSet, parts};
use crate::conversation::{Answer, BatchConversation, CommandBatch};
use crate::error::{Error, Failure};
use crate::new_value::NewValue;
use crate::protocol::compose::{Command, StoreMode};
use crate::ring_client::Client;
use crate::round::{self, Turn};
use crate::values::ServerFailure;
use crate::write_report::{Unwritten, WriteReport};

use forerun_core::sync::time;

impl Client {
    /// Stores many values: one round trip to all servers at once. If a key repeats, its last value
    /// is stored last. All requests are composed in memory before the first answer is awaited.
    ///
    /// ```no_run
    /// # use forerun_client::{Client, ClientOptions, NewValue, ServerAddress};
    /// # let servers = [ServerAddress::tcp("localhost", 11211)];
    /// # let client = Client::new(servers, ClientOptions::default())?;
    /// let entries = [("a", NewValue::new("1")), ("b", NewValue::new("2"))];
    /// let report = client.set_many(&entries)?;
    /// for (position, why) in &report.unwritten {
    ///     eprintln!("{}: {why:?}", entries[*position].0);
    /// }
    /// # Ok::<(), forerun_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooManyKeys`], [`Error::Forked`], and nothing was sent then;
    /// [`Error::Interrupted`]. A server that fails is not an error: the report names it.
    pub fn set_many<K: AsRef<[u8]>>(
        &self,
        entries: &[(K, NewValue<'_>)],
    ) -> Result<WriteReport, Error> {
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_ref()).collect();
        self.write_all(&keys, |at| {
            let value = &entries[at].1;
            Command::Store {
                mode: StoreMode::Set,
                value: value.data,
                flags: value.flags,
                expiry: value.expiry.seconds(),
            }
        })
    }

    /// Deletes many keys: one round trip to all servers at once.
    ///
    /// # Errors
    /// The same as for [`set_many`](Client::set_many).
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<WriteReport, Error> {
        self.write_all(keys, |_| Command::Delete)
    }

    /// Sends a command for each key. All are of one kind.
    fn write_all<'v, K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        command: impl Fn(usize) -> Command<'v>,
    ) -> Result<WriteReport, Error> {
        self.check_batch(keys)?;
        self.counters().commands(keys.len());
        let start = time::now();
        let mut set = self.take_set();
        let mut positions = std::mem::take(&mut set.positions);
        self.group(keys, &mut positions, start);
        let mut answers = vec![None; keys.len()];
        let mut batch = CommandBatch {
            order: &positions.order,
            answers: &mut answers,
        };
        let (mut turns, mut failures) = (Vec::new(), Vec::new());
        for (server, part) in parts(&positions.begins) {
            match self.begin(server, &mut set, start) {
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
                    self.record(server, Some(&failure));
                    failures.push((server, part.len(), failure));
                }
            }
        }
        round::run(&mut turns, &mut batch, &self.round_options(start));
        for turn in turns {
            let server = turn.server;
            if let (conversation, Some(failure)) = self.end(turn, &mut set) {
                failures.push((server, conversation.unanswered(), failure));
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
