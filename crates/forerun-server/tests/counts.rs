//! `stats` counts commands as memcached counts them.

mod testing;

use testing::Client;

/// The counts with these names.
fn counts(client: &mut Client, names: &[&str]) -> Vec<(String, u64)> {
    let text = String::from_utf8(client.send(b"stats\r\n")).expect("statistics are text");
    let count = |name: &&str| {
        let start = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        let value = value.unwrap_or_else(|| panic!("{name} is missing"));
        (name.to_string(), value.parse().expect("it is a number"))
    };
    names.iter().map(count).collect()
}

fn expect(client: &mut Client, expected: &[(&str, u64)]) {
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    let expected: Vec<(String, u64)> = expected
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(counts(client, &names), expected);
}

#[test]
fn gat_counts_as_a_touch_and_not_as_a_get() {
    let mut client = Client::new();
    client.send(b"set a 0 0 1\r\n5\r\ngat 0 a b\r\n");
    expect(
        &mut client,
        &[
            ("cmd_get", 0),
            ("get_hits", 0),
            ("get_misses", 0),
            ("cmd_touch", 2),
            ("touch_hits", 1),
            ("touch_misses", 1),
        ],
    );
}

#[test]
fn a_meta_get_counts_as_a_touch_only_if_it_touches() {
    let mut client = Client::new();
    client.send(b"set a 0 0 1\r\n5\r\nmg a T30\r\nmg b T30\r\nmg a v\r\nmg b N30\r\n");
    expect(
        &mut client,
        &[
            ("cmd_get", 3),
            ("get_hits", 2),
            ("get_misses", 1),
            ("cmd_touch", 1),
            ("touch_hits", 1),
            ("touch_misses", 0),
        ],
    );
}

#[test]
fn an_append_that_compares_versions_counts_in_no_outcome_of_cas() {
    let mut client = Client::new();
    client.send(b"set a 0 0 1\r\n5\r\nms a 1 MA C77\r\nx\r\nms a 1 MP C77\r\nx\r\n");
    expect(
        &mut client,
        &[("cas_badval", 0), ("cas_hits", 0), ("cas_misses", 0)],
    );
    client.send(b"ms a 1 C77\r\nx\r\n");
    expect(&mut client, &[("cas_badval", 1)]);
}

#[test]
fn a_set_whose_data_block_does_not_end_where_it_should_counts_as_a_set() {
    let mut client = Client::new();
    assert_eq!(
        client.send(b"set a 0 0 1\r\n5xy"),
        b"CLIENT_ERROR bad data chunk\r\n"
    );
    expect(&mut client, &[("cmd_set", 1)]);
}
