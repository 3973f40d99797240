//! Shortens a failing history. Removes steps, commands, cuts and words as long as it still fails.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::command::{Command, Word};
use super::history::{Failure, play};
use super::peer::Memcached;
use super::step::Step;

/// How long shrinking may take.
const TIMEOUT: Duration = Duration::from_secs(40);

struct Shrinker<'a> {
    memcached: &'a Memcached,
    steps: Vec<Step>,
    failure: Failure,
    deadline: Instant,
}

/// Returns the shortest history found that fails, and how it fails.
pub(super) fn shrink(
    memcached: &Memcached,
    steps: &[Step],
    failure: Failure,
) -> Result<(Vec<Step>, Failure)> {
    let mut shrinker = Shrinker {
        memcached,
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

impl Shrinker<'_> {
    /// Returns whether `steps` fail. If so, they become the history.
    fn try_steps(&mut self, mut steps: Vec<Step>) -> Result<bool> {
        if steps.is_empty() || Instant::now() > self.deadline {
            return Ok(false);
        }
        let (_, failure) = play(self.memcached, &steps)?;
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

    /// Removes words that a command does not need: see [`removable`].
    fn without_words(&mut self) -> Result<()> {
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

    /// Tries to remove each part that `count` counts in a step, the last one first.
    fn remove_each(
        &mut self,
        count: impl Fn(&Step) -> usize,
        remove: impl Fn(&mut Step, usize),
    ) -> Result<()> {
        let mut at = self.steps.len();
        while at > 0 {
            at -= 1;
            for index in (0..self.steps.get(at).map_or(0, &count)).rev() {
                let mut steps = self.steps.clone();
                if at < steps.len() && index < count(&steps[at]) {
                    remove(&mut steps[at], index);
                    steps.retain(|step| !step.is_empty());
                    self.try_steps(steps)?;
                }
            }
            at = at.min(self.steps.len());
        }
        Ok(())
    }
}

/// The words of a command that can be removed without making it another command.
fn removable(command: &Command) -> std::ops::Range<usize> {
    let name = match command.words.first() {
        Some(Word::Text(name)) => &name[..],
        _ => b"",
    };
    let first = match (name, &command.block) {
        (b"ms", _) => 3,
        (b"cas", _) => 6,
        // With fewer words, the command would flush something else.
        (b"flush_all", _) => usize::MAX,
        (_, Some(_)) => 5,
        (_, None) => 2,
    };
    first.min(command.words.len())..command.words.len()
}
