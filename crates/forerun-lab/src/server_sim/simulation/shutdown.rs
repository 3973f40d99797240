//! The end of a server, and what it leaves for the next one.

use std::time::Duration;

use forerun_server::simulation::{SteppedServer, System};

use super::super::plan::{CrashCause, CrashMoment};
use super::super::system::SimSystem;
use super::{Drain, Failure, LIVE_SNAPSHOT, SNAPSHOT, Simulation, new_cache};

impl Simulation<'_> {
    /// Ends a server that has drained.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        let ended = self.workers_ended.unwrap_or(self.sim.time());
        let drain = Drain {
            requested: self.drain_requested.unwrap_or(ended),
            ended,
            paused: self.paused_in_drain,
        };
        self.checks.check_drained(drain, self.sim.net.open())?;
        // The clock as the final snapshot sees it.
        System::tick(&self.sim, &self.cache);
        self.stopped_at = (
            i64::from(self.sim.cache_second()),
            System::unix_s(&self.sim) as i64,
        );
        self.step += 1;
        let began = self.moment();
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        self.abandon_clients();
        if let Some(CrashMoment::LastSnapshot { calls }) = self.crash_moment() {
            self.sim.die_after(calls);
        }
        let ended = server.finish();
        self.written_s = i64::from(self.sim.cache_second());
        self.note(|| format!("the server ended: {ended:?}"));
        if let Err(error) = &ended
            && !self.sim.disk_may_fail()
            && !self.sim.is_crashed()
        {
            let message = format!("the server did not end as it should: {error}");
            return Err(Failure::new("end", message));
        }
        let is_written = self.plan.snapshot && ended.is_ok();
        if is_written && !self.sim.survives_power_loss(SNAPSHOT.as_ref()) {
            let message =
                "the last snapshot was reported as written, and a loss of power would take it";
            return Err(Failure::new("durability", message));
        }
        let is_crashed = self.sim.is_crashed();
        self.sim.end_process();
        if is_crashed {
            self.lose_power_if_planned();
            self.counts.crashes += 1;
            self.copies
                .check_after_crash(&self.sim, LIVE_SNAPSHOT.as_ref())?;
        }
        self.saved = self.sim.file_number(SNAPSHOT.as_ref());
        if is_written && self.saved.is_none() {
            return Err(Failure::new("durability", "the last snapshot is gone"));
        }
        if self.saved.is_some() {
            self.step += 1;
            let moment = self.moment();
            self.copies
                .check_file(&self.sim, SNAPSHOT.as_ref(), began, moment, &mut self.model)?;
            self.counts.snapshots += 1;
        }
        Ok(())
    }

    /// Kills the server while it serves.
    pub(super) fn kill_server(&mut self) -> Result<(), Failure> {
        self.server = None;
        self.abandon_clients();
        self.sim.end_process();
        self.lose_power_if_planned();
        self.counts.crashes += 1;
        self.saved = None;
        if self.sim.file_number(SNAPSHOT.as_ref()).is_some() {
            let message = "a server that crashed leaves a snapshot that the next one would load";
            return Err(Failure::new("stale", message));
        }
        self.copies
            .check_after_crash(&self.sim, LIVE_SNAPSHOT.as_ref())
    }

    /// Kills a server that is starting and has not yet served any client.
    pub(super) fn kill_starting_server(&mut self, server: Option<SteppedServer<SimSystem>>) {
        drop(server);
        self.sim.end_process();
        self.lose_power_if_planned();
        self.counts.crashes += 1;
        let left = self.sim.file_number(SNAPSHOT.as_ref());
        self.saved = self.saved.filter(|saved| left == Some(*saved));
    }

    /// Lets time pass, and prepares the next server.
    pub(super) fn begin_next_incarnation(&mut self) -> Result<(), Failure> {
        let incarnation = self.plan.incarnations[self.incarnation];
        self.sim.advance(Duration::from_secs(incarnation.rest_s));
        self.sim.jump_wall_clock(incarnation.clock_jump_s);
        self.evictions_before += self.cache.stats().evictions;
        self.cache = new_cache(self.plan)?;
        self.incarnation += 1;
        self.sim.net.forget_server();
        Ok(())
    }

    /// Tells the model which entries the server has loaded at its start.
    pub(super) fn restore_model(&mut self) {
        if self.incarnation == 0 {
            return;
        }
        if self.saved.take().is_none() {
            self.model.empty();
            return;
        }
        // The time that passed on the wall clock since the snapshot, and while it was written, also
        // passed for its items.
        let (cache_then, unix_then) = self.stopped_at;
        let unix_now = System::unix_s(&self.sim) as i64;
        let cache_now = i64::from(self.sim.cache_second());
        let shift_s = (cache_now - cache_then) - (unix_now - unix_then);
        self.model.restart(cache_then..=self.written_s, shift_s);
    }

    pub(super) fn crash_moment(&self) -> Option<CrashMoment> {
        self.plan.incarnations[self.incarnation]
            .crash
            .map(|crash| crash.moment)
    }

    fn lose_power_if_planned(&mut self) {
        let crash = self.plan.incarnations[self.incarnation].crash;
        if crash.is_some_and(|crash| crash.cause == CrashCause::PowerLoss) {
            self.note(|| "power is lost".to_owned());
            self.sim.lose_power(&mut self.rng);
        } else {
            self.note(|| "the process is killed".to_owned());
        }
    }

    fn abandon_clients(&mut self) {
        let incarnation = self.incarnation;
        for client in &mut self.clients {
            if client.plan.incarnation == incarnation {
                client.abandon(&mut self.model);
            }
        }
    }
}
