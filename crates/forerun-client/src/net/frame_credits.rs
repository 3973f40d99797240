//! The multi-get frames of a connection that may not be sent yet.
//!
//! ```text
//!   output   │ sent │ to be sent │ frame │ frame │ frame      held back: frames are not enabled yet,
//!                                ^held[0] ^held[1] ^held[2]   or the connection has no credits
//! ```

use std::collections::VecDeque;

use forerun_wire::multi_get::{ENABLE, set_received};

/// Whether the server accepts frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FrameSupport {
    /// The server was not asked.
    #[default]
    Off,
    /// Waits for its answer.
    Asked,
    /// At most this many requests may be unanswered.
    On { credits: u16 },
}

/// The frames of a connection.
#[derive(Debug, Default)]
pub(crate) struct FrameCredits {
    state: FrameSupport,
    /// The positions in the output of frames that may not be sent yet.
    held: VecDeque<usize>,
    /// The number of frames that were released, modulo 2^16.
    requests: u16,
    /// The number of answers that were received in full, modulo 2^16.
    answers: u16,
}

impl FrameCredits {
    /// Asks the server for frames before the first one.
    pub(crate) fn enable(&mut self, output: &mut Vec<u8>) {
        if self.state == FrameSupport::Off {
            output.extend_from_slice(ENABLE);
            self.state = FrameSupport::Asked;
        }
    }

    /// Whether the next reply says whether the server accepts frames.
    pub(crate) fn is_asked(&self) -> bool {
        self.state == FrameSupport::Asked
    }

    /// Whether the server accepts frames.
    pub(crate) fn is_enabled(&self) -> bool {
        matches!(self.state, FrameSupport::On { .. })
    }

    /// The server accepts frames.
    pub(crate) fn enabled(&mut self, credits: u16, output: &mut [u8]) {
        self.state = FrameSupport::On { credits };
        self.release(output);
    }

    /// Adds a frame that begins at this position of the output.
    pub(crate) fn hold(&mut self, at: usize, output: &mut [u8]) {
        self.held.push_back(at);
        self.release(output);
    }

    /// An answer was received in full.
    pub(crate) fn answered(&mut self, output: &mut [u8]) {
        self.answers = self.answers.wrapping_add(1);
        self.release(output);
    }

    /// The end of what may be sent of an output of `len` bytes.
    pub(crate) fn send_end(&self, len: usize) -> usize {
        self.held.front().copied().unwrap_or(len)
    }

    /// Releases as many frames as there are credits.
    fn release(&mut self, output: &mut [u8]) {
        let FrameSupport::On { credits } = self.state else {
            return;
        };
        while self.requests.wrapping_sub(self.answers) < credits
            && let Some(at) = self.held.pop_front()
        {
            set_received(&mut output[at..], self.answers);
            self.requests = self.requests.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame_request;

    #[test]
    fn frames_are_released_as_credits_return_and_report_what_was_received() {
        let mut frames = FrameCredits::default();
        let mut output = Vec::new();
        frames.enable(&mut output);
        frames.enable(&mut output);
        assert_eq!(output, ENABLE);
        let start = output.len();
        let push = |output: &mut Vec<u8>| {
            let at = output.len();
            frame_request::push([&b"k"[..]].into_iter(), 0, false, output);
            (at, output.len())
        };
        let ends: Vec<(usize, usize)> = (0..4).map(|_| push(&mut output)).collect();
        for (at, _) in &ends {
            frames.hold(*at, &mut output);
        }
        assert!(frames.is_asked());
        assert_eq!(frames.send_end(output.len()), start);
        frames.enabled(2, &mut output);
        assert_eq!(frames.send_end(output.len()), ends[1].1);
        for (at, (_, end)) in ends.iter().enumerate().skip(2) {
            frames.answered(&mut output);
            assert_eq!(frames.send_end(output.len()), *end, "{at}");
        }
        let received: Vec<u8> = ends.iter().map(|(at, _)| output[at + 12]).collect();
        assert_eq!(received, [0, 0, 1, 2]);
    }
}
