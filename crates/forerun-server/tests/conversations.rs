//! A session gives the answers in the conversations, no matter how its input is split.

mod testing;

use testing::{Client, FILES, Kept, cases};

fn play(step: usize) {
    let mut wrong = String::new();
    for (file, text) in FILES {
        let cases = cases(text);
        assert!(cases.len() > 3, "{file} has cases");
        for case in cases {
            let mut client = Client::new();
            let mut kept = Kept::default();
            for turn in case.turns {
                let answer = client.send_in_steps(&kept.fill(&turn.sent), step);
                if !kept.matches(&turn.answer, &answer) {
                    wrong += &format!(
                        "{file}.txt:{}, {}: {}\n  answer:   {}\n  expected: {}\n",
                        turn.line,
                        case.name,
                        turn.sent.escape_ascii(),
                        answer.escape_ascii(),
                        turn.answer.escape_ascii(),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn answers_match_the_conversations() {
    play(usize::MAX);
}

#[test]
fn answers_are_the_same_byte_by_byte() {
    play(1);
}

#[test]
fn answers_are_the_same_in_pieces_of_seven() {
    play(7);
}

#[test]
fn a_connection_that_begins_with_a_binary_request_is_refused_at_the_end_of_its_header() {
    let mut header = [0; 24];
    header[0] = 0x80;
    header[12..16].copy_from_slice(b"abcd");
    for cut in 0..24 {
        let mut client = Client::new();
        let (first, rest) = header.split_at(cut);
        assert_eq!(client.send(first), b"", "{cut} bytes are no request");
        assert!(!client.is_closed, "{cut}");
        let answer = client.send(rest);
        assert!(client.is_closed, "{cut}");
        assert_eq!(answer[0], 0x81, "the magic of a binary answer");
        assert_eq!(answer[6..8], [0, 0x81], "unknown command");
        assert_eq!(answer[12..16], *b"abcd");
        let body_len = u32::from_be_bytes([answer[8], answer[9], answer[10], answer[11]]);
        assert_eq!(answer.len(), 24 + body_len as usize);
    }
    // Later in a connection, the byte 0x80 has no special meaning.
    let mut client = Client::new();
    assert_eq!(
        client.send(b"mn\r\n\x80\r\nmn\r\n"),
        b"MN\r\nERROR\r\nMN\r\n"
    );
    assert!(!client.is_closed);
}
