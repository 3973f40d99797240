//! The end of a server, and the start of the next one with what it left.

use std::time::Duration;

use forerun_server::simulation::System;

use super::{Failure, SNAPSHOT, World, new_cache};

impl World<'_> {
    /// Ends the server; returns whether it left a snapshot.
    pub(super) fn stop(&mut self) -> Result<bool, Failure> {
        let ended = self.workers_ended.unwrap_or(self.sim.time());
        let took = self.drain_asked.map_or(Duration::ZERO, |asked| {
            (ended - asked).saturating_sub(self.paused_in_drain)
        });
        self.watch.drained(took, self.sim.net.open())?;
        // The clock as the final snapshot sees it.
        System::tick(&self.sim, &self.cache);
        self.stopped_at = (
            i64::from(self.sim.cache_second()),
            System::unix_s(&self.sim) as i64,
        );
        self.turn += 1;
        let began = self.stamp();
        let Some(server) = self.server.take() else {
            return Ok(false);
        };
        for client in self
            .clients
            .iter_mut()
            .filter(|client| client.plan.life == self.life)
        {
            client.abandon(&mut self.model);
        }
        let ended = server.finish();
        self.note(|| format!("the server ended: {ended:?}"));
        if let Err(error) = &ended
            && !self.sim.disk_may_fail()
        {
            let what = format!("the server did not end as it should: {error}");
            return Err(Failure::new("end", what));
        }
        if self.plan.snapshot && ended.is_ok() {
            self.turn += 1;
            let stamp = self.stamp();
            self.copies
                .check_file(&self.sim, SNAPSHOT.as_ref(), began, stamp, &mut self.model)?;
            self.counts.snapshots += 1;
        }
        Ok(self.plan.snapshot && ended.is_ok())
    }

    /// A second server, with what the first one left.
    pub(super) fn restart(&mut self, kept: bool) -> Result<(), Failure> {
        // The time that passed on the wall clock since the snapshot, and while it was written, also
        // passed for its items.
        let (cache_then, unix_then) = self.stopped_at;
        self.evictions_before += self.cache.stats().evictions;
        self.cache = new_cache(self.plan)?;
        self.life = 1;
        self.sim.net.forget_server();
        self.start()?;
        match kept {
            true => {
                let unix_now = System::unix_s(&self.sim) as i64;
                let cache_now = i64::from(self.sim.cache_second());
                self.model
                    .restart((cache_now - cache_then) - (unix_now - unix_then));
            }
            false => self.model.empty(),
        }
        Ok(())
    }
}
