//! `stats` counts commands as memcached counts them.

use crate::testing;

use testing::Client;

/// The counts with these names.
fn counts(client: &mut Client, names: &[&str]) -> Vec<(String, u64)> {
    counts_of(client, "stats", names)
}

/// The counts with these names in the answer to a command.
fn counts_of(client: &mut Client, command: &str, names: &[&str]) -> Vec<(String, u64)> {
    let text = String::from_utf8(client.send(format!("{command}\r\n").as_bytes()))
        .expect("statistics are text");
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

#[test]
fn statistics_of_memory_include_large_values() {
    let mut client = Client::new();
    let len = 300_000;
    let mut sent = Vec::new();
    for number in 0..20 {
        sent.extend(format!("set k{number} 0 0 {len}\r\n").bytes());
        sent.extend(vec![b'x'; len]);
        sent.extend(b"\r\n");
    }
    client.send(&sent);
    let values_bytes = 20 * len as u64;
    let bytes = counts(&mut client, &["bytes"])[0].1;
    let is_right = |bytes: u64| (values_bytes..values_bytes + 20_000).contains(&bytes);
    assert!(is_right(bytes), "{bytes}");
    let requested = counts_of(&mut client, "stats items", &["items:1:mem_requested"]);
    assert_eq!(requested[0].1, bytes);
    let names = [
        "1:chunk_size",
        "1:used_chunks",
        "1:total_chunks",
        "1:free_chunks",
    ];
    let slabs = counts_of(&mut client, "stats slabs", &names);
    let [chunk_bytes, used, total, free] = [0, 1, 2, 3].map(|at| slabs[at].1);
    assert!(is_right(chunk_bytes * used), "{slabs:?}");
    assert_eq!((used, total), (20, 20 + free));
    let malloced = counts_of(&mut client, "stats slabs", &["total_malloced"])[0].1;
    let limit = counts(&mut client, &["limit_maxbytes"])[0].1;
    assert!((bytes..limit).contains(&malloced), "{malloced}");
    // Less than a block and the rounding of pages is unused.
    assert!(total * chunk_bytes <= malloced, "{slabs:?}, {malloced}");
}
