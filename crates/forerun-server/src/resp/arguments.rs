//! The arguments of a request in memory of their own.
//!
//! ```text
//!   bytes   SET a hello        one after another
//!   ends    3   4 9
//!   large   the argument that is being written to the cache's own memory, and its position
//! ```

use forerun_cache::ValueBuffer;

/// Arguments, owned.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The value of a `SET` that arrived in pieces. Among the arguments it is empty.
    pub(crate) large: Option<LargeArgument>,
}

/// A value outside the arguments.
#[derive(Debug)]
pub(crate) enum LargeArgument {
    Value(ValueBuffer),
    /// It was discarded, because it is larger than any value may be.
    TooLarge,
    /// It was discarded, because there was no memory for it.
    OutOfMemory,
}

impl Arguments {
    /// A copy of these arguments.
    pub(crate) fn copy_of(arguments: &[&[u8]]) -> Arguments {
        let mut copy = Arguments::default();
        copy.bytes
            .reserve(arguments.iter().map(|one| one.len()).sum());
        copy.ends.reserve(arguments.len());
        arguments.iter().for_each(|one| copy.push(one));
        copy
    }

    pub(crate) fn push(&mut self, argument: &[u8]) {
        self.extend_last(argument);
        self.finish_last();
    }

    /// Appends to the argument that is being received.
    pub(crate) fn extend_last(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends the argument that is being received.
    pub(crate) fn finish_last(&mut self) {
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Replaces `slices` by the arguments.
    pub(crate) fn fill<'a>(&'a self, slices: &mut Vec<&'a [u8]>) {
        slices.clear();
        slices.extend(self.iter());
    }

    /// Empties the arguments for later ones. Keeps at most so many bytes of memory.
    pub(crate) fn recycled(mut self, kept_bytes: usize) -> Arguments {
        if self.memory_bytes() > kept_bytes {
            return Arguments::default();
        }
        self.bytes.clear();
        self.ends.clear();
        self.large = None;
        self
    }

    /// Memory that the arguments take, with the slices of them while they are executed, and without
    /// a large value, whose memory is the cache's.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * (size_of::<usize>() + size_of::<&[u8]>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_what_was_pushed() {
        let mut arguments = Arguments::copy_of(&[b"SET", b"", b"a"]);
        arguments.extend_last(b"hel");
        arguments.extend_last(b"lo");
        arguments.finish_last();
        let expected = [&b"SET"[..], b"", b"a", b"hello"];
        assert!(arguments.iter().eq(expected));
        assert_eq!((arguments.len(), arguments.get(4)), (4, None));
        let mut slices = vec![&b"other"[..]];
        arguments.fill(&mut slices);
        assert_eq!(slices, expected);
    }
}
