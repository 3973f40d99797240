//! `DEL`, `UNLINK`, `EXISTS`, `TOUCH` and `MSET` of very many keys, in parts.
//!
//! ```text
//!   DEL k1 … k1024 │ k1025 … k2048 │ …      other connections have their turns in between
//!       └ count ──────► count ───────► :n
//! ```
//!
//! Within a transaction they are executed as a whole.

use forerun_cache::CacheKeyspace;

use crate::resp::arguments::Arguments;
use crate::resp::command_spec::{Command, Spec};
use crate::resp::reply::RespVersion;
use crate::session::CommandContext;

use super::call::{Call, Refusal};

/// A request with no more arguments is executed at once.
const WHOLE_ARGUMENTS_MAX: usize = 4096;
/// Arguments of a part: an even number, so that it has whole pairs.
const PART_ARGUMENTS: usize = 1024;

/// Such a request.
#[derive(Debug)]
pub(super) struct KeyParts {
    spec: &'static Spec,
    arguments: Arguments,
    /// The first argument of the next part.
    next: usize,
    /// Keys that were deleted or found.
    count: usize,
}

impl KeyParts {
    /// Whether a request is executed in parts.
    pub(super) fn takes(command: Command, arguments: &Arguments) -> bool {
        use Command::{Del, Exists, Mset, Touch, Unlink};
        let is_such = matches!(command, Del | Exists | Mset | Touch | Unlink);
        is_such && arguments.large.is_none() && arguments.len() > WHOLE_ARGUMENTS_MAX
    }

    pub(super) fn new(spec: &'static Spec, arguments: Arguments) -> KeyParts {
        KeyParts {
            spec,
            arguments,
            next: 1,
            count: 0,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.arguments.memory_bytes()
    }

    /// Executes the next part. After the last one, appends the reply and returns true.
    pub(super) fn step(
        &mut self,
        protocol: RespVersion,
        keyspace: CacheKeyspace,
        context: &mut CommandContext<'_>,
    ) -> bool {
        let is_first = self.next == 1;
        // All pairs are checked before the first one is stored.
        let end = match self.spec.command {
            Command::Mset if is_first => self.arguments.len(),
            _ => (self.next + PART_ARGUMENTS).min(self.arguments.len()),
        };
        let arguments = (self.next..end).filter_map(|at| self.arguments.get(at));
        let arguments: Vec<&[u8]> = [self.spec.name.as_bytes()]
            .into_iter()
            .chain(arguments)
            .collect();
        let mut call = Call {
            context,
            protocol,
            keyspace,
            spec: self.spec,
            arguments: &arguments,
            large: None,
        };
        let done = Self::execute(&mut call, is_first, &mut self.count);
        self.next = (self.next + PART_ARGUMENTS).min(self.arguments.len());
        let is_last = self.next == self.arguments.len();
        match (done, self.spec.command) {
            (Err(refusal), _) => {
                call.context.commands.fail(self.spec.command);
                call.error(refusal);
                return true;
            }
            (Ok(()), _) if !is_last => return false,
            (Ok(()), Command::Mset) => call.ok(),
            (Ok(()), _) => call.count(self.count),
        }
        true
    }

    fn execute(call: &mut Call<'_, '_>, is_first: bool, count: &mut usize) -> Result<(), Refusal> {
        match call.spec.command {
            Command::Mset => {
                let pairs = if is_first {
                    call.checked_pairs()?
                } else {
                    call.pairs()?
                };
                let here = pairs.len().min(PART_ARGUMENTS);
                call.set_pairs(&pairs[..here])?;
            }
            Command::Del | Command::Unlink => *count += call.delete_keys(),
            _ => *count += call.count_keys(),
        }
        Ok(())
    }
}
