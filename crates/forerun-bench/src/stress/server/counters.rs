//! What clients have done.

/// A client's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub keys_read: u64,
    pub keys_found: u64,
    pub stored: u64,
    pub deleted: u64,
    pub reconnected: u64,
    pub killed: u64,
    pub half_closed: u64,
    pub read_slowly: u64,
    pub slept: u64,
    pub malformed: u64,
    pub refused: u64,
    /// Steps in RESP.
    pub resp: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.keys_read += other.keys_read;
        self.keys_found += other.keys_found;
        self.stored += other.stored;
        self.deleted += other.deleted;
        self.reconnected += other.reconnected;
        self.killed += other.killed;
        self.half_closed += other.half_closed;
        self.read_slowly += other.read_slowly;
        self.slept += other.slept;
        self.malformed += other.malformed;
        self.refused += other.refused;
        self.resp += other.resp;
    }
}
