//! A client of sessions without a server, for tests.

use std::io::IoSlice;
use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions, Clock};

use crate::input::Input;
use crate::output::Output;
use crate::resp::transaction_locks::TransactionLocks;
use crate::session::{Context, SessionState};
use crate::settings::Settings;
use crate::shared::{NoServer, Shared};

use super::RespSession;

/// A client with a connection of its own to a cache that others may share.
pub(super) struct TestClient {
    session: RespSession,
    input: Input,
    output: Output,
    pub(super) context: Context,
    pub(super) cache: Arc<Cache>,
    pub(super) is_closed: bool,
}

impl TestClient {
    pub(super) fn new() -> Self {
        Self::with(CacheOptions::default(), Settings::default())
    }

    pub(super) fn with(options: CacheOptions, settings: Settings) -> Self {
        let options = options.clock(Clock::Manual);
        let cache = Arc::new(Cache::new(options).expect("the options are fine"));
        let shared = Shared::new(settings, Arc::clone(&cache), Box::new(NoServer));
        let mut context = Context::new(Arc::new(shared));
        context.lock = Some(TransactionLocks::new(1).of_worker(0));
        Self::on(context)
    }

    /// Another connection to the same server.
    pub(super) fn another(&self) -> Self {
        Self::on(Context::new(Arc::clone(self.context.shared())))
    }

    fn on(context: Context) -> Self {
        Self {
            session: RespSession::new(false),
            input: Input::new(),
            output: Output::new(),
            cache: Arc::clone(context.shared().cache()),
            context,
            is_closed: false,
        }
    }

    /// Sends bytes in pieces and reads `step` bytes of the answers at a time.
    pub(super) fn send_in_pieces(&mut self, bytes: &[u8], piece: usize, step: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        for piece in bytes.chunks(piece.max(1)) {
            self.input.extend(piece);
            loop {
                let next =
                    self.session
                        .receive(&mut self.input, &mut self.output, &mut self.context);
                self.is_closed |= next == SessionState::Closed;
                let is_over = next != SessionState::OutputFull;
                self.read(&mut answer, if is_over { usize::MAX } else { step });
                if is_over {
                    break;
                }
            }
        }
        answer
    }

    /// Sends bytes and returns the answers of the connection's first turn.
    pub(super) fn first_answers(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        self.input.extend(bytes);
        let _ = self
            .session
            .receive(&mut self.input, &mut self.output, &mut self.context);
        self.read(&mut answer, usize::MAX);
        answer
    }

    /// Sends bytes in pieces that fit in the input.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send_in_pieces(bytes, 16 << 10, usize::MAX)
    }

    /// Sends the words of a line as one request. Returns the answer without its last line end.
    pub(super) fn ask(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask_words(&words)
    }

    /// Like [`ask`](Self::ask), with words that contain anything.
    pub(super) fn ask_words(&mut self, words: &[&[u8]]) -> String {
        let answer = self.send(&request(words));
        let text = String::from_utf8_lossy(&answer).into_owned();
        text.strip_suffix("\r\n")
            .map_or(text.clone(), str::to_owned)
    }

    /// Memory that the session holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.session.memory_bytes()
    }

    fn read(&mut self, answer: &mut Vec<u8>, max: usize) {
        let mut left = max;
        while left > 0 && !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[])];
            self.output.slices(&mut slices);
            let count = slices[0].len().min(left);
            answer.extend_from_slice(&slices[0][..count]);
            self.output.advance(count);
            left -= count;
        }
    }
}

/// A request of these words.
pub(super) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Lines to send, each with its answer, in which `|` stands for a line end.
pub(super) fn converse(client: &mut TestClient, exchanges: &[(&str, &str)]) {
    for (line, expected) in exchanges {
        let answer = client.ask(line).replace("\r\n", "|");
        assert_eq!(answer, *expected, "{line}");
    }
}
