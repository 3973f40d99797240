//! Shortens a failing history. Removes steps, commands, cuts and words as long as it still fails.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::command::Command;
use super::history::{Failure, play};
use super::protocol::Protocol;
use super::step::Step;

/// How long shrinking may take.
const TIMEOUT: Duration = Duration::from_secs(40);

struct Shrinker<'a, P> {
    protocol: &'a P,
    steps: Vec<Step>,
    failure: Failure,
    deadline: Instant,
}

/// Returns the shortest history found that fails, and how it fails.
pub(super) fn shrink(
    protocol: &impl Protocol,
    steps: &[Step],
    failure: Failure,
) -> Result<(Vec<Step>, Failure)> {
    let mut shrinker = Shrinker {
        protocol,
        steps: steps[..=failure.step].to_vec(),
        failure,
        deadline: Instant::now() + TIMEOUT,
    };
    shrinker.without_steps()?;
    shrinker.on_one_connection()?;
    shrinker.without_cuts()?;
    shrinker.without_commands()?;
    shrinker.without_words()?;
    shrinker.without_steps()?;
    Ok((shrinker.steps, shrinker.failure))
}

impl<P: Protocol> Shrinker<'_, P> {
    /// Returns whether `steps` fail. If so, they become the history.
    fn try_steps(&mut self, mut steps: Vec<Step>) -> Result<bool> {
        if steps.is_empty() || Instant::now() > self.deadline {
            return Ok(false);
        }
        let (_, failure) = play(self.protocol, &steps)?;
        let Some(failure) = failure else {
            return Ok(false);
        };
        steps.truncate(failure.step + 1);
        self.steps = steps;
        self.failure = failure;
        Ok(true)
    }

    /// Removes runs of steps, long ones first.
    fn without_steps(&mut self) -> Result<()> {
        let mut run = self.steps.len() / 2;
        while run > 0 {
            let mut end = self.steps.len().saturating_sub(1);
            while end > 0 {
                let start = end.saturating_sub(run);
                let mut steps = self.steps.clone();
                steps.drain(start..end);
                self.try_steps(steps)?;
                end = start.min(self.steps.len().saturating_sub(1));
            }
            run /= 2;
        }
        Ok(())
    }

    fn on_one_connection(&mut self) -> Result<()> {
        let mut steps = self.steps.clone();
        steps.iter_mut().for_each(|step| step.connection = 0);
        self.try_steps(steps).map(|_| ())
    }

    fn without_cuts(&mut self) -> Result<()> {
        let mut steps = self.steps.clone();
        steps.iter_mut().for_each(|step| step.cuts.clear());
        self.try_steps(steps).map(|_| ())
    }

    fn without_commands(&mut self) -> Result<()> {
        self.remove_each(
            |step| step.commands.len() + step.packets.len(),
            |step, index| {
                // A step has either.
                if step.is_binary() {
                    step.packets.remove(index);
                } else {
                    step.commands.remove(index);
                }
            },
        )
    }

    /// Removes words that a command does not need.
    fn without_words(&mut self) -> Result<()> {
        let protocol = self.protocol;
        let removable = |command: &Command| protocol.removable(command);
        let words = |step: &Step| step.commands.iter().map(|one| removable(one).len()).sum();
        self.remove_each(words, |step, mut index| {
            for command in &mut step.commands {
                let removable = removable(command);
                if index < removable.len() {
                    command.words.remove(removable.start + index);
                    return;
                }
                index -= removable.len();
            }
        })
    }

    /// Tries to remove runs of the parts that `count` counts in a step: long runs first, and the
    /// last ones first.
    fn remove_each(
        &mut self,
        count: impl Fn(&Step) -> usize,
        remove: impl Fn(&mut Step, usize),
    ) -> Result<()> {
        let mut at = self.steps.len();
        while at > 0 {
            at -= 1;
            let parts = |steps: &[Step]| steps.get(at).map_or(0, &count);
            let mut run = parts(&self.steps).div_ceil(2);
            while run > 0 {
                let mut end = parts(&self.steps);
                while end > 0 {
                    let start = end.saturating_sub(run);
                    let mut steps = self.steps.clone();
                    // The higher ones first, so that the lower ones keep their places.
                    (start..end)
                        .rev()
                        .for_each(|index| remove(&mut steps[at], index));
                    steps.retain(|step| !step.is_empty());
                    self.try_steps(steps)?;
                    end = start.min(parts(&self.steps));
                }
                run /= 2;
            }
            at = at.min(self.steps.len());
        }
        Ok(())
    }
}
