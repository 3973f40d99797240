//! A session gives the answers in the conversations, no matter how its input is split.

use crate::testing;

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
