//! Generates pipelines of the binary protocol.
//!
//! Keys are those of text commands, so that both protocols read and change the same items, except
//! those that text commands send in base64. A request whose lengths are wrong ends a pipeline.

use super::{CompareMode, Generator, PIPELINE_MAX, Step};
use crate::differential::packet::{Packet, PacketVersion};

/// The first connection of the binary protocol.
pub(super) const FIRST_CONNECTION: usize = 8;

/// Times to live. None expires during a history; 2592001 is a time of day that has passed.
const TIMES: [u32; 5] = [0, 500, 2_592_000, 2_592_001, i32::MAX as u32];

/// Amounts and initial numbers.
const NUMBERS: [u64; 7] = [0, 1, 9, 99, i64::MAX as u64, 1 << 63, u64::MAX];

/// The quiet form of a command.
fn quiet(opcode: u8) -> u8 {
    match opcode {
        0x00 => 0x09,
        0x0c => 0x0d,
        0x1d => 0x1e,
        0x23 => 0x24,
        0x01..=0x08 => opcode + 0x10,
        0x0e | 0x0f => opcode + 0x0b,
        _ => opcode,
    }
}

impl Generator {
    /// A pipeline of requests on a connection of its own.
    pub(super) fn binary_step(&mut self) -> Step {
        let connection = FIRST_CONNECTION + self.below(2);
        if self.chance(0.03) {
            let step = Step::of_packets(connection, vec![Packet::new(0x10)]);
            return Step {
                compare: CompareMode::Unordered,
                ..step
            };
        }
        if self.chance(0.03) {
            let last = self.hostile();
            return Step::of_packets(connection, vec![last]);
        }
        let count = match self.below(10) {
            0..=4 => 1,
            5..=7 => 2 + self.below(4),
            _ => 2 + self.below(PIPELINE_MAX - 1),
        };
        let mut packets: Vec<Packet> = (0..count).map(|_| self.packet()).collect();
        // Memcached does not change a number in place while an answer with its item waits to be
        // sent.
        let reads = packets.iter().position(Packet::is_read);
        let reads = reads.unwrap_or(packets.len());
        let mut at = 0;
        packets.retain(|packet| {
            at += 1;
            at <= reads || !packet.is_arithmetic()
        });
        let ends = packets.iter().position(|packet| packet.is_last);
        packets.truncate(ends.map_or(packets.len(), |at| at + 1));
        let cuts = self.cuts();
        Step {
            cuts,
            ..Step::of_packets(connection, packets)
        }
    }

    fn packet(&mut self) -> Packet {
        let mut packet = match self.below(40) {
            0..=9 => self.binary_store(),
            10..=23 => {
                let opcode = [0x00, 0x0c][self.below(2)];
                Packet {
                    key: self.binary_key(),
                    ..Packet::new(opcode)
                }
            }
            24..=27 => {
                let opcode = [0x1c, 0x1d, 0x23][self.below(3)];
                Packet {
                    extras: self.binary_time().to_be_bytes().to_vec(),
                    key: self.binary_key(),
                    ..Packet::new(opcode)
                }
            }
            28..=32 => self.binary_arithmetic(),
            33..=35 => Packet {
                version: self.packet_version(0.3),
                key: self.binary_key(),
                ..Packet::new(0x04)
            },
            _ => self.binary_admin(),
        };
        // An earlier memcached may refuse a large number, and whether it may is seen in the answer.
        let is_loud = packet.is_arithmetic() && !self.is_later();
        if self.chance(0.35) && !is_loud {
            packet.opcode = quiet(packet.opcode);
        }
        packet
    }

    fn binary_key(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => b"nobody".to_vec(),
            1 => b" binary\r\n\0\x80".to_vec(),
            2 => b"large".to_vec(),
            _ => self.key(),
        }
    }

    fn binary_time(&mut self) -> u32 {
        match self.below(2) {
            0 => 0,
            _ => TIMES[self.below(TIMES.len())],
        }
    }

    fn binary_number(&mut self) -> u64 {
        match self.below(2) {
            0 => self.below(20) as u64,
            _ => NUMBERS[self.below(NUMBERS.len())],
        }
    }

    fn packet_version(&mut self, share: f64) -> PacketVersion {
        if !self.chance(share) {
            return PacketVersion::Number(0);
        }
        match self.below(8) {
            0 => PacketVersion::Number(77_777_777_777_777),
            1..=4 => PacketVersion::Back(0),
            _ => PacketVersion::Back(self.below(6)),
        }
    }

    fn binary_store(&mut self) -> Packet {
        let opcode = [0x01, 0x01, 0x01, 0x02, 0x03, 0x0e, 0x0f][self.below(7)];
        let (key, value) = match self.below(240) {
            // Too large.
            0 => (b"large".to_vec(), self.long_value((4 << 20) + 100)),
            1..=4 => {
                let len = 600_000 + self.below(100_000);
                (b"large".to_vec(), self.long_value(len))
            }
            _ => (self.binary_key(), self.value()),
        };
        let is_extension = matches!(opcode, 0x0e | 0x0f);
        let flags = [0, 7, 1 << 31, u32::MAX][self.below(4)];
        let extras = [flags.to_be_bytes(), self.binary_time().to_be_bytes()].concat();
        Packet {
            version: self.packet_version(0.25),
            extras: if is_extension { Vec::new() } else { extras },
            key,
            value,
            ..Packet::new(opcode)
        }
    }

    fn binary_arithmetic(&mut self) -> Packet {
        // Only a counter may grow.
        let (opcode, key, delta) = match self.below(4) {
            0 => (0x06, self.plain_key(), self.binary_number()),
            1 => (0x05, self.plain_key(), 0),
            2 => (0x05, self.counter_key(), self.binary_number()),
            _ => (0x06, self.counter_key(), self.binary_number()),
        };
        let time = match self.below(2) {
            0 => u32::MAX,
            _ => self.binary_time(),
        };
        let numbers = [delta.to_be_bytes(), self.binary_number().to_be_bytes()].concat();
        Packet {
            version: self.packet_version(0.2),
            extras: [&numbers[..], &time.to_be_bytes()].concat(),
            key,
            ..Packet::new(opcode)
        }
    }

    fn binary_admin(&mut self) -> Packet {
        match self.below(16) {
            0..=5 => Packet::new(0x0a),
            6..=8 => Packet::new(0x0b),
            9 => {
                self.was_flushed = true;
                Packet {
                    extras: vec![0; [0, 4][self.below(2)]],
                    ..Packet::new(0x08)
                }
            }
            10 => Packet {
                is_last: true,
                ..Packet::new(0x07)
            },
            // No command has this opcode. With a key or extras, memcached would skip them twice.
            11 => Packet {
                value: self.value(),
                ..Packet::new([0x1f, 0x25, 0x30, 0xff][self.below(4)])
            },
            12 => Packet {
                key: self
                    .pick(&[&b"nothing"[..], b"detail x", b"sizes x"])
                    .to_vec(),
                ..Packet::new(0x10)
            },
            // The servers have no users.
            13 => Packet::new(0x20),
            14 => Packet {
                key: b"PLAIN".to_vec(),
                value: b"\0user\0password".to_vec(),
                ..Packet::new([0x21, 0x22][self.below(2)])
            },
            _ => self.hostile(),
        }
    }

    /// A request that ends the connection: its lengths are wrong.
    fn hostile(&mut self) -> Packet {
        let mut packet = match self.below(4) {
            0 => self.binary_store(),
            1 => self.binary_arithmetic(),
            2 => Packet {
                key: self.key(),
                ..Packet::new(0x00)
            },
            _ => Packet::new(0x0a),
        };
        packet.value.truncate(100);
        packet.is_last = true;
        match self.below(4) {
            // The body is shorter than the key.
            0 => {
                packet.key.resize(10, b'k');
                packet.replaced = vec![(8, 0), (9, 0), (10, 0), (11, 9)];
            }
            // The body is longer than any item. An earlier memcached stores it with a negative
            // length.
            1 if self.is_later() => {
                packet.replaced = (8..12).map(|at| (at, 0xff)).collect();
            }
            // Extras that the command has not.
            2 => {
                packet.extras = vec![0; 7];
            }
            _ => packet.key = vec![b'k'; 251],
        }
        packet
    }
}
