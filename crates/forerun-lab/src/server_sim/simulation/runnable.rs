//! The threads and clients that can do something now, and the checks when there are none.

use std::time::Duration;

use super::{Actor, ClientStage, Failure, PollWait, Simulation};

impl Simulation<'_> {
    /// The threads and clients that can do something now.
    pub(super) fn runnable(&self) -> Vec<Actor> {
        let now = self.sim.time();
        let mut ready = Vec::new();
        let is_due = |waits: &PollWait| waits.until.is_some_and(|until| until <= now);
        let Some(server) = &self.server else {
            return ready;
        };
        if server.acceptor_timeout().is_some()
            && (self.sim.net.is_ready(0) || is_due(&self.acceptor))
        {
            ready.push(Actor::Acceptor);
        }
        for (number, waits) in self.workers.iter().enumerate() {
            if !server.has_ended(number) && (self.sim.net.is_ready(number + 1) || is_due(waits)) {
                ready.push(Actor::Worker(number));
            }
        }
        for number in 0..self.clients.len() {
            if self.client_due(number).is_some_and(|due| due <= now) {
                ready.push(Actor::Client(number));
            }
        }
        if self.sim.task_due().is_some_and(|due| due <= now) {
            ready.push(Actor::Task);
        }
        ready
    }

    /// When a client can next do something, as far as is known now.
    fn client_due(&self, number: usize) -> Option<Duration> {
        let client = &self.clients[number];
        if client.plan.incarnation != self.incarnation {
            return None;
        }
        match (client.stage, &client.wire) {
            (ClientStage::Before, _) => Some(self.life_start + client.plan.start),
            (ClientStage::Open, Some(wire)) => {
                let sends = client.sends_at().filter(|_| wire.socket.is_writable());
                let reads = wire.socket.is_readable().then(|| client.reads_at());
                [sends, reads].into_iter().flatten().min()
            }
            _ => None,
        }
    }

    /// Checks that the cache's clock is right until the acceptor is due again.
    pub(super) fn check_clock(&self) -> Result<(), Failure> {
        let is_due = self.sim.net.is_ready(0)
            || (self.acceptor.until).is_some_and(|until| until <= self.sim.time());
        if self.drain_requested.is_none() && !is_due {
            self.checks.check_clock(&self.sim, &self.cache)
        } else {
            Ok(())
        }
    }

    /// Checks that no client is owed anything. No thread can do anything now, so such a client
    /// would wait forever.
    pub(super) fn check_stuck(&mut self) -> Result<(), Failure> {
        let now = self.sim.time();
        let incarnation = self.incarnation;
        let open = self
            .clients
            .iter()
            .filter(|client| client.plan.incarnation == incarnation);
        self.checks.check_stuck(open, now)
    }

    /// Advances time to the next event, because no thread or client can run.
    pub(super) fn advance_time(&mut self) -> Result<(), Failure> {
        let now = self.sim.time();
        let server = self.server.as_ref();
        let acceptor = self
            .acceptor
            .until
            .filter(|_| server.is_some_and(|server| server.acceptor_timeout().is_some()));
        let workers = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(number, waits)| {
                let ended = server.is_none_or(|server| server.has_ended(number));
                waits.until.filter(|_| !ended)
            });
        let clients = (0..self.clients.len()).filter_map(|number| self.client_due(number));
        let event = self.events.front().map(|(at, _)| *at);
        let next = workers
            .chain(clients)
            .chain(acceptor)
            .chain(event)
            .chain(self.sim.task_due())
            .min();
        let Some(next) = next else {
            return match self.drain_requested {
                Some(_) => Err(Failure::new("drain", "the server does not end".to_owned())),
                None => {
                    self.drain();
                    Ok(())
                }
            };
        };
        self.sim.advance(next.saturating_sub(now));
        Ok(())
    }
}
