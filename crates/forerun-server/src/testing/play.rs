//! Sends a stream of bytes to a session without a socket, in pieces, and reads its answers.

use std::io::IoSlice;
use std::sync::Arc;

use crate::input::{Input, LINE_BYTES_MAX};
use crate::output::Output;
use crate::server::client_session::ClientSession;
use crate::session::{Context, SessionState};
use crate::shared::Shared;

/// Returns the answers to `stream`. The stream arrives in pieces whose lengths are those in `cuts`,
/// repeated; without cuts it is one piece. The client reads `step` bytes at a time.
///
/// # Panics
/// If the output holds `output_bytes_max` bytes, or the session or its input much more than
/// arrived.
pub(super) fn play_on(
    mut session: ClientSession,
    shared: &Arc<Shared>,
    (stream, cuts, step): (&[u8], &[u8], usize),
    output_bytes_max: usize,
) -> Vec<u8> {
    let mut context = Context::new(Arc::clone(shared));
    let (mut input, mut output) = (Input::new(), Output::new());
    let mut answers = Vec::new();
    let mut rest = stream;
    let mut cuts = cuts.iter().cycle();
    loop {
        let len = cuts
            .next()
            .map_or(rest.len(), |&cut| usize::from(cut) * 3 + 1)
            .min(rest.len());
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        for piece in piece.chunks(16 << 10) {
            input.extend(piece);
            loop {
                let next = session.receive(&mut input, &mut output, &mut context);
                let len = output.len();
                assert!(len < output_bytes_max, "the output holds {len} bytes");
                if matches!(next, SessionState::Closed | SessionState::Shutdown) {
                    read(&mut output, &mut answers, usize::MAX);
                    return answers;
                }
                if next == SessionState::NeedsInput {
                    break;
                }
                read(&mut output, &mut answers, step);
            }
            read(&mut output, &mut answers, step);
            let waiting = input.bytes().len();
            assert!(
                waiting < LINE_BYTES_MAX,
                "{waiting} bytes stay in the input"
            );
            let memory = session.memory_bytes();
            let memory_max = 32 * stream.len() + (1 << 20);
            assert!(memory < memory_max, "the session holds {memory} bytes");
        }
        if rest.is_empty() {
            session.end(&mut input, &mut output);
            read(&mut output, &mut answers, usize::MAX);
            return answers;
        }
    }
}

/// The client reads up to `max` bytes of the answers.
fn read(output: &mut Output, answers: &mut Vec<u8>, max: usize) {
    let mut left = max;
    while left > 0 && !output.is_empty() {
        let mut slices = [IoSlice::new(&[])];
        output.slices(&mut slices);
        let count = slices[0].len().min(left);
        answers.extend_from_slice(&slices[0][..count]);
        output.advance(count);
        left -= count;
    }
}
