//! Reads the answers to multi-get frames from the bytes received so far.
//!
//! ```text
//!   part    F7 01 options last  body_bytes(4) id(4) first(2) count(2) │ value_len(4)… flags(4)… cas(8)… │ value…
//!           └──────────────── one reply: Part; the arrays are kept ──────────────────────────────────┘    Found …  PartEnd
//!   error   F7 02 0       1     body_bytes(4) id(4) code(2)  0(2)     │ text        one reply: FrameError
//! ```
//!
//! Each value is a reply of its own, so a connection never holds more than one value.

use forerun_wire::multi_get::{
    AnswerHeader, AnswerKind, Entry, HEADER_BYTES, PART_KEYS_MAX, PartArrays, RequestOptions,
};

use super::reply::{LINE_BYTES_MAX, NoReply, Parsed, PartHead, Reply};

/// The values of the part that is being read.
#[derive(Debug, Default)]
pub(crate) struct PartReader {
    /// `None` between parts.
    head: Option<PartHead>,
    /// The positions in the part of the values that were found, and what the arrays say about them.
    entries: Vec<(usize, Entry)>,
    next: usize,
}

impl PartReader {
    /// Whether the next bytes belong to a part whose header was read.
    pub(crate) fn is_within_part(&self) -> bool {
        self.head.is_some()
    }

    /// Whether the next reply needs no more bytes.
    pub(crate) fn is_ready(&self) -> bool {
        let entry = self.entries.get(self.next);
        self.head.is_some() && entry.is_none_or(|(_, entry)| entry.value_bytes == 0)
    }

    /// The reply at the front of `bytes`. The caller removes what it consumed before the next call.
    ///
    /// # Errors
    /// [`NoReply`].
    pub(crate) fn next<'b>(
        &mut self,
        bytes: &'b [u8],
        max_value_bytes: usize,
    ) -> Result<Parsed<'b>, NoReply> {
        let Some(head) = self.head else {
            return self.read_head(bytes);
        };
        let Some(&(at, entry)) = self.entries.get(self.next) else {
            self.head = None;
            let is_last = head.is_last;
            let reply = Reply::PartEnd { is_last };
            return Ok(Parsed::Complete { reply, consumed: 0 });
        };
        let found = |data| Reply::Found {
            at,
            flags: entry.flags,
            cas: head.with_cas.then_some(entry.cas),
            data,
        };
        let value_bytes = entry.value_bytes;
        if value_bytes > max_value_bytes {
            self.next += 1;
            let (value_bytes, skip) = (value_bytes as u64, value_bytes as u64);
            return Ok(Parsed::Oversized {
                reply: found(&[]),
                consumed: 0,
                value_bytes,
                skip,
            });
        }
        let Some(data) = bytes.get(..value_bytes) else {
            let needed = value_bytes;
            return Ok(Parsed::Partial { needed });
        };
        self.next += 1;
        Ok(Parsed::Complete {
            reply: found(data),
            consumed: value_bytes,
        })
    }

    fn read_head<'b>(&mut self, bytes: &'b [u8]) -> Result<Parsed<'b>, NoReply> {
        let partial = |needed| Ok(Parsed::Partial { needed });
        let Some(header) = bytes.first_chunk() else {
            return partial(HEADER_BYTES);
        };
        let Some(AnswerHeader {
            kind,
            options,
            last,
            body_bytes,
            id,
            first,
            count,
        }) = AnswerHeader::read(header)
        else {
            return Err(NoReply("not the header of a part"));
        };
        let (body_bytes, count) = (u64::from(body_bytes), usize::from(count));
        if kind == AnswerKind::Error {
            if (options, last, count) != (0, 1, 0) || body_bytes > LINE_BYTES_MAX as u64 {
                return Err(NoReply("not the header of an error"));
            }
            let end = HEADER_BYTES + body_bytes as usize;
            let Some(text) = bytes.get(HEADER_BYTES..end) else {
                return partial(end);
            };
            let reply = Reply::FrameError { code: first, text };
            let consumed = end;
            return Ok(Parsed::Complete { reply, consumed });
        }
        // The client always asks for flags.
        let options = RequestOptions::of(options).filter(|options| options.with_flags);
        let Some(options) = options else {
            return Err(NoReply("not the options of a request"));
        };
        if last > 1 || !(1..=PART_KEYS_MAX).contains(&count) {
            return Err(NoReply("not the header of a part"));
        }
        let end = HEADER_BYTES + PartArrays::len_bytes(count, options);
        let Some(arrays) = PartArrays::read(&bytes[HEADER_BYTES..], count, options) else {
            return partial(end);
        };
        self.entries.clear();
        self.next = 0;
        let found = (0..count).filter_map(|at| Some((at, arrays.entry(at)?)));
        self.entries.extend(found);
        let values_bytes = self
            .entries
            .iter()
            .map(|(_, entry)| entry.value_bytes as u64);
        let arrays_bytes = (end - HEADER_BYTES) as u64;
        if body_bytes != arrays_bytes + values_bytes.sum::<u64>() {
            return Err(NoReply("a part whose lengths do not add up"));
        }
        let head = PartHead {
            id,
            first: first.into(),
            count,
            is_last: last == 1,
            with_cas: options.with_cas,
        };
        self.head = Some(head);
        Ok(Parsed::Complete {
            reply: Reply::Part(head),
            consumed: end,
        })
    }
}

/// For the fuzz target: reads `bytes` as answers to frames, both at once and in pieces, and
/// compares the results.
///
/// # Panics
/// If the replies differ, or a partial reply asks for no more bytes than there are.
pub fn fuzz_frame_replies(bytes: &[u8]) {
    const LIMIT: usize = 300;
    let (mut whole, mut in_pieces) = (PartReader::default(), PartReader::default());
    let mut rest = bytes;
    loop {
        if rest.is_empty() && !whole.is_ready() {
            return;
        }
        let at_once = whole.next(rest, LIMIT);
        let mut received = 0;
        let by_parts = loop {
            match in_pieces.next(&rest[..received], LIMIT) {
                Ok(Parsed::Partial { needed }) => {
                    assert!(needed > received);
                    assert!(needed <= HEADER_BYTES + 16 * PART_KEYS_MAX + LIMIT);
                    if needed > rest.len() {
                        assert!(matches!(at_once, Ok(Parsed::Partial { .. })));
                        return;
                    }
                    received = needed;
                }
                parsed => break parsed,
            }
        };
        assert_eq!(by_parts, at_once);
        match at_once {
            Ok(Parsed::Complete { consumed, .. }) => rest = &rest[consumed..],
            Ok(Parsed::Oversized { skip, .. }) => {
                let Some(behind) = rest.get(skip as usize..) else {
                    return;
                };
                rest = behind;
            }
            Ok(Parsed::Partial { .. }) | Err(NoReply(_)) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_wire::multi_get::{ANSWER, NOT_FOUND};
    use proptest::prelude::*;

    const KIND_VALUES: u8 = AnswerKind::Values as u8;
    const KIND_ERROR: u8 = AnswerKind::Error as u8;

    /// A part with these values.
    fn part(options: u8, last: u8, values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut body = Vec::new();
        for value in values {
            let bytes = value.map_or(NOT_FOUND, |value| value.len() as u32);
            body.extend(bytes.to_le_bytes());
        }
        (0..values.len() as u32).for_each(|at| body.extend((at + 70).to_le_bytes()));
        if options == 3 {
            (0..values.len() as u64).for_each(|at| body.extend((at << 40).to_le_bytes()));
        }
        values
            .iter()
            .flatten()
            .for_each(|value| body.extend(*value));
        let mut bytes = vec![ANSWER, KIND_VALUES, options, last];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(5_u32.to_le_bytes());
        bytes.extend(3_u16.to_le_bytes());
        bytes.extend((values.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn error(text: &[u8]) -> Vec<u8> {
        let length = [text.len() as u8, 0, 0, 0];
        [
            &[ANSWER, KIND_ERROR, 0, 1][..],
            &length,
            &[9, 0, 0, 0, 6, 0, 0, 0],
            text,
        ]
        .concat()
    }

    #[test]
    fn a_part_is_read_value_by_value() {
        let values: [Option<&[u8]>; 5] = [None, Some(b"abc"), Some(b""), Some(&[b'x'; 9]), None];
        let bytes = part(3, 1, &values);
        let mut reader = PartReader::default();
        let mut rest = &bytes[..];
        let mut seen = Vec::new();
        while !rest.is_empty() || reader.is_ready() {
            match reader.next(rest, 8) {
                Ok(Parsed::Complete { reply, consumed }) => {
                    seen.push(format!("{reply:?}"));
                    rest = &rest[consumed..];
                }
                Ok(Parsed::Oversized {
                    value_bytes, skip, ..
                }) => {
                    seen.push(format!("{value_bytes} bytes"));
                    rest = &rest[skip as usize..];
                }
                other => panic!("{other:?}"),
            }
        }
        let cas = |at: u64| Some(at << 40);
        let found = |at, data: &'static [u8]| {
            let (flags, cas) = (70 + at as u32, cas(at as u64));
            format!(
                "{:?}",
                Reply::Found {
                    at,
                    flags,
                    cas,
                    data
                }
            )
        };
        let head = PartHead {
            id: 5,
            first: 3,
            count: 5,
            is_last: true,
            with_cas: true,
        };
        let expected = [
            format!("{:?}", Reply::Part(head)),
            found(1, b"abc"),
            found(2, b""),
            "9 bytes".to_owned(),
            format!("{:?}", Reply::PartEnd { is_last: true }),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn lies_are_no_replies() {
        let good = part(1, 1, &[Some(b"abc"), None]);
        let with = |at: usize, byte| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for bytes in [
            with(0, 0xf6),
            with(1, 0),
            with(1, 3),
            with(2, 0),
            with(2, 5),
            with(3, 2),
            with(4, 18),
            with(7, 1),
            with(14, 0),
            with(15, 2),
            with(16, 4),
            with(20, 0),
            [&[ANSWER, KIND_ERROR, 0, 1][..], &[0, 16, 0, 0], &[0; 8]].concat(),
            [&[ANSWER, KIND_ERROR, 0, 0][..], &[0; 12]].concat(),
        ] {
            let read = PartReader::default().next(&bytes, 100);
            assert!(read.is_err(), "{bytes:02x?}: {read:?}");
        }
        assert!(PartReader::default().next(&good, 100).is_ok());
        let refused = error(b"no");
        let read = PartReader::default().next(&refused, 100);
        let (code, text) = (6, &b"no"[..]);
        let (reply, consumed) = (Reply::FrameError { code, text }, 18);
        assert_eq!(read, Ok(Parsed::Complete { reply, consumed }));
    }

    fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
        prop_oneof![
            Just(None),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(Some),
            Just(Some(vec![b'x'; 301])),
        ]
    }

    /// The values of a part, its options, and whether it is the last.
    fn any_part() -> impl Strategy<Value = (Vec<Option<Vec<u8>>>, u8, u8)> {
        let values = prop::collection::vec(value(), 1..20);
        (values, prop::sample::select(vec![1, 3]), 0..2_u8)
    }

    proptest! {
        #[test]
        fn answers_do_not_depend_on_how_they_arrive(
            answers in prop::collection::vec(any_part(), 0..5),
            change in prop_oneof![Just(None), (0_usize..200, any::<u8>()).prop_map(Some)],
        ) {
            let mut bytes = Vec::new();
            for (values, options, last) in &answers {
                let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
                bytes.extend(part(*options, *last, &values));
            }
            bytes.extend(error(b"the end"));
            if let Some((at, byte)) = change
                && let Some(changed) = bytes.get_mut(at)
            {
                *changed = byte;
            }
            fuzz_frame_replies(&bytes);
        }
    }
}
