//! Requests and answers of the binary protocol.
//!
//! ```text
//!   Packet::new(0x01).extras(b"…").key(b"k").value(b"v").bytes()  ->  a request
//!   Packet::read_all(answer)                                      ->  its answers
//! ```

/// A request or an answer. In a request, `status` is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub opcode: u8,
    pub status: u16,
    pub opaque: u32,
    pub cas: u64,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

pub const GET: u8 = 0x00;
pub const SET: u8 = 0x01;
pub const ADD: u8 = 0x02;
pub const REPLACE: u8 = 0x03;
pub const DELETE: u8 = 0x04;
pub const INCREMENT: u8 = 0x05;
pub const DECREMENT: u8 = 0x06;
pub const QUIT: u8 = 0x07;
pub const FLUSH: u8 = 0x08;
pub const GETQ: u8 = 0x09;
pub const NOOP: u8 = 0x0a;
pub const VERSION: u8 = 0x0b;
pub const GETK: u8 = 0x0c;
pub const GETKQ: u8 = 0x0d;
pub const APPEND: u8 = 0x0e;
pub const PREPEND: u8 = 0x0f;
pub const STAT: u8 = 0x10;
pub const SETQ: u8 = 0x11;
pub const QUITQ: u8 = 0x17;
pub const FLUSHQ: u8 = 0x18;
pub const VERBOSITY: u8 = 0x1b;
pub const TOUCH: u8 = 0x1c;
pub const GAT: u8 = 0x1d;
pub const GATQ: u8 = 0x1e;
pub const SASL_MECHANISMS: u8 = 0x20;
pub const SASL_AUTH: u8 = 0x21;
pub const SASL_STEP: u8 = 0x22;
pub const GATK: u8 = 0x23;
pub const GATKQ: u8 = 0x24;

/// The quiet form of a command, if it has one.
pub fn quiet(opcode: u8) -> Option<u8> {
    Some(match opcode {
        GET => GETQ,
        GETK => GETKQ,
        SET..=FLUSH => opcode + 0x10,
        APPEND | PREPEND => opcode + 0x0b,
        GAT => GATQ,
        GATK => GATKQ,
        _ => return None,
    })
}

impl Packet {
    pub fn new(opcode: u8) -> Self {
        Self {
            opcode,
            ..Self::default()
        }
    }

    pub fn extras(mut self, extras: &[u8]) -> Self {
        self.extras = extras.to_vec();
        self
    }

    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = key.to_vec();
        self
    }

    pub fn value(mut self, value: &[u8]) -> Self {
        self.value = value.to_vec();
        self
    }

    pub fn opaque(mut self, opaque: u32) -> Self {
        self.opaque = opaque;
        self
    }

    pub fn cas(mut self, cas: u64) -> Self {
        self.cas = cas;
        self
    }

    /// `set`, `add` or `replace`.
    pub fn store(opcode: u8, key: &[u8], flags: u32, time: u32, value: &[u8]) -> Self {
        let extras = [flags.to_be_bytes(), time.to_be_bytes()].concat();
        Self::new(opcode).extras(&extras).key(key).value(value)
    }

    /// `increment` or `decrement`.
    pub fn count(opcode: u8, key: &[u8], delta: u64, initial: u64, time: u32) -> Self {
        let numbers = [delta.to_be_bytes(), initial.to_be_bytes()].concat();
        let extras = [&numbers[..], &time.to_be_bytes()].concat();
        Self::new(opcode).extras(&extras).key(key)
    }

    /// `touch` or `gat`.
    pub fn touch(opcode: u8, key: &[u8], time: u32) -> Self {
        Self::new(opcode).extras(&time.to_be_bytes()).key(key)
    }

    /// The bytes of a request.
    pub fn bytes(&self) -> Vec<u8> {
        let body_len = self.extras.len() + self.key.len() + self.value.len();
        let mut bytes = vec![0x80, self.opcode];
        bytes.extend((self.key.len() as u16).to_be_bytes());
        bytes.extend([self.extras.len() as u8, 0, 0, 0]);
        bytes.extend((body_len as u32).to_be_bytes());
        bytes.extend(self.opaque.to_be_bytes());
        bytes.extend(self.cas.to_be_bytes());
        [&bytes[..], &self.extras, &self.key, &self.value].concat()
    }

    /// The number of bytes of the answer at the front of `bytes`, if its header is there.
    pub fn len_bytes(bytes: &[u8]) -> Option<usize> {
        let len = bytes.get(8..12)?.try_into().expect("four bytes");
        Some(24 + u32::from_be_bytes(len) as usize)
    }

    /// All answers in `bytes`, which must end with a whole one.
    pub fn read_all(mut bytes: &[u8]) -> Vec<Packet> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes[0], 0x81, "not an answer: {}", bytes.escape_ascii());
            let len = Self::len_bytes(bytes).expect("a header");
            let (answer, rest) = bytes.split_at(len);
            bytes = rest;
            let number = |at: usize, len: usize| {
                let digits = answer[at..at + len].iter();
                digits.fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
            };
            let key_at = 24 + usize::from(answer[4]);
            let value_at = key_at + number(2, 2) as usize;
            assert_eq!(answer[5], 0, "the data type");
            answers.push(Packet {
                opcode: answer[1],
                status: number(6, 2) as u16,
                opaque: number(12, 4) as u32,
                cas: number(16, 8),
                extras: answer[24..key_at].to_vec(),
                key: answer[key_at..value_at].to_vec(),
                value: answer[value_at..].to_vec(),
            });
        }
        answers
    }
}

/// The bytes of several requests.
pub fn pipeline(requests: &[Packet]) -> Vec<u8> {
    requests.iter().flat_map(Packet::bytes).collect()
}
