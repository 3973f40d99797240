//! Multi-get frames as a client composes and reads them, after docs/operate/multi-get.md.

use std::io::{Read, Write};

/// The line that switches frames on, and its answer.
pub const ENABLE: &str = "multi_get 1\r\n";
pub const ENABLED: &str = "MULTI_GET 1 64\r\n";

pub const FLAGS: u8 = 1;
pub const CAS: u8 = 2;

/// A request with all fields that a test may set.
#[derive(Clone, Debug)]
pub struct Frame {
    pub form: u8,
    pub options: u8,
    pub reserved: u8,
    pub id: u32,
    pub received: u16,
    pub count: u16,
    /// `None`: the length of the body.
    pub body_bytes: Option<u32>,
    pub body: Vec<u8>,
}

impl Frame {
    /// Asks for keys of any length.
    pub fn of<K: AsRef<[u8]>>(id: u32, keys: &[K]) -> Frame {
        let mut body: Vec<u8> = keys.iter().map(|key| key.as_ref().len() as u8).collect();
        keys.iter().for_each(|key| body.extend(key.as_ref()));
        Frame {
            form: 1,
            options: 0,
            reserved: 0,
            id,
            received: 0,
            count: keys.len() as u16,
            body_bytes: None,
            body,
        }
    }

    /// Asks for numbers.
    pub fn of_numbers(id: u32, keys: &[u64]) -> Frame {
        Frame {
            form: 2,
            body: keys.iter().flat_map(|key| key.to_le_bytes()).collect(),
            count: keys.len() as u16,
            ..Frame::of(id, &[b""; 0])
        }
    }

    pub fn options(self, options: u8) -> Frame {
        Frame { options, ..self }
    }

    pub fn received(self, received: u16) -> Frame {
        Frame { received, ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let body_bytes = self.body_bytes.unwrap_or(self.body.len() as u32);
        let mut bytes = vec![0xf6, self.form, self.options, self.reserved];
        bytes.extend(body_bytes.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.received.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub data: Vec<u8>,
    pub flags: Option<u32>,
    pub cas: Option<u64>,
}

/// A value without flags and version.
pub fn found(data: impl AsRef<[u8]>) -> Option<Found> {
    Some(Found {
        data: data.as_ref().to_vec(),
        flags: None,
        cas: None,
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Values {
        id: u32,
        values: Vec<Option<Found>>,
        parts: usize,
    },
    Error {
        id: u32,
        code: u16,
        text: String,
    },
}

impl Answer {
    /// The values of the answer to the request `id`.
    pub fn values_of(self, expected: u32) -> Vec<Option<Found>> {
        match self {
            Answer::Values { id, values, .. } if id == expected => values,
            other => panic!("not the values of {expected}: {other:?}"),
        }
    }

    /// The code of a refusal.
    pub fn code(self) -> u16 {
        match self {
            Answer::Error { code, text, .. } if !text.is_empty() => code,
            other => panic!("not an error: {other:?}"),
        }
    }
}

fn take<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).expect("more of the answer");
    bytes
}

/// Reads one answer with all its parts, and checks that its fields agree.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    let (mut values, mut parts, mut first_id) = (Vec::new(), 0, None);
    loop {
        let [magic, kind, options, last] = take(stream);
        assert_eq!(magic, 0xf7, "the first byte of a part");
        let body_bytes = u32::from_le_bytes(take(stream)) as usize;
        let id = u32::from_le_bytes(take(stream));
        let (first, count) = (take(stream), take(stream));
        let (first, count) = (u16::from_le_bytes(first), u16::from_le_bytes(count));
        if kind == 2 {
            assert_eq!((options, last, count), (0, 1, 0));
            let mut text = vec![0; body_bytes];
            stream.read_exact(&mut text).expect("the text");
            let text = String::from_utf8(text).expect("a text");
            let code = first;
            return Answer::Error { id, code, text };
        }
        assert_eq!((kind, usize::from(first)), (1, values.len()));
        assert!((1..=256).contains(&count) && options < 4 && last < 2);
        assert_eq!(*first_id.get_or_insert(id), id);
        let lengths: Vec<u32> = (0..count)
            .map(|_| u32::from_le_bytes(take(stream)))
            .collect();
        let flags: Vec<u32> = (0..count * u16::from(options & FLAGS))
            .map(|_| u32::from_le_bytes(take(stream)))
            .collect();
        let versions: Vec<u64> = (0..count * u16::from(options & CAS != 0))
            .map(|_| u64::from_le_bytes(take(stream)))
            .collect();
        let mut expected_bytes = 4 * lengths.len() + 4 * flags.len() + 8 * versions.len();
        for (at, &bytes) in lengths.iter().enumerate() {
            let (flags, cas) = (flags.get(at).copied(), versions.get(at).copied());
            if bytes == u32::MAX {
                assert_eq!((flags.unwrap_or(0), cas.unwrap_or(0)), (0, 0));
                values.push(None);
                continue;
            }
            expected_bytes += bytes as usize;
            let mut data = vec![0; bytes as usize];
            stream.read_exact(&mut data).expect("the value");
            values.push(Some(Found { data, flags, cas }));
        }
        assert_eq!(body_bytes, expected_bytes);
        parts += 1;
        if last == 1 {
            return Answer::Values { id, values, parts };
        }
    }
}

/// Sends a request and reads its answer.
pub fn ask_frame(stream: &mut (impl Read + Write), frame: &Frame) -> Answer {
    stream.write_all(&frame.bytes()).expect("it is sent");
    read_answer(stream)
}
