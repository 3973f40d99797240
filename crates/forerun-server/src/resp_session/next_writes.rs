//! Writes that follow in the input: their keys, which are prefetched together.

use std::mem;

use crate::resp::command_spec::{Flags, Keys};
use crate::resp::command_table::find;
use crate::resp::parse::{Limits, Parsed, parse};
use crate::resp::read_spans::RespScratch;
use crate::session::{CommandContext, recycle};

use super::read_batch::keep;

/// Prefetches what the writes from `at` on need. A command of many keys prefetches them itself.
pub(super) fn prefetch_writes(
    bytes: &[u8],
    at: usize,
    context: &mut CommandContext<'_>,
    scratch: &mut RespScratch,
) {
    let mut arguments = recycle(mem::take(&mut scratch.fields));
    context.prefetch_writes(at, |at| write_at(bytes, at, &mut arguments));
    scratch.fields = keep(arguments);
}

/// The key of the write at `at`, and where the next request begins.
fn write_at<'a>(
    bytes: &'a [u8],
    at: usize,
    arguments: &mut Vec<&'a [u8]>,
) -> Option<(&'a [u8], usize)> {
    let Ok(Parsed::Request(len)) = parse(bytes.get(at..)?, Limits::Open, arguments) else {
        return None;
    };
    let spec = find(arguments[0])?;
    match spec.keys {
        Keys::At(first, ..) if spec.flags.has(Flags::WRITE) => {
            let key = *arguments.get(usize::try_from(first).ok()?)?;
            Some((key, at + len))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_read_up_to_the_first_other_or_incomplete_request() {
        let writes = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n$4\r\nincr\r\n$1\r\nc\r\n\
                       *4\r\n$4\r\nHSET\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n";
        for rest in [
            &b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"[..],
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$9\r\nb",
            b"*1\r\n$3\r\nSET\r\n",
            b"*1\r\n$5\r\nMULTI\r\n",
            b"*2\r\n$4\r\nnone\r\n$1\r\na\r\n",
            b"SET a b\r\n",
            b"*x\r\n",
            b"",
        ] {
            let bytes = [&writes[..], rest].concat();
            let (mut keys, mut at, mut arguments) = (Vec::new(), 0, Vec::new());
            while let Some((key, next)) = write_at(&bytes, at, &mut arguments) {
                keys.push(key);
                at = next;
            }
            assert_eq!(keys, [b"a", b"c", b"d"]);
            assert_eq!(at, writes.len());
        }
    }
}
