//! Tests the client against a minimal server: a map behind the text forms of both protocols.

use super::client::{Answered, Client, Until, latencies};
use super::data::Items;
use super::form::Form;
use super::request::Requests;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ITEMS: Items = Items {
    count: 500,
    value_bytes: 10,
};

type Map = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Serves `map` on a free port until the process ends; `spoil` may change a value in its answers.
fn serve(map: Map, spoil: fn(&mut Vec<u8>)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let map = map.clone();
            std::thread::spawn(move || converse(stream.unwrap(), &map, spoil));
        }
    });
    address
}

fn converse(stream: TcpStream, map: &Map, spoil: fn(&mut Vec<u8>)) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = BufWriter::new(stream);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        if let Some(count) = line.strip_prefix('*') {
            line = bulk_strings(&mut input, count)?;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = |key: &str| {
            let mut value = map.lock().unwrap().get(key).cloned()?;
            spoil(&mut value);
            Some(value)
        };
        match words[..] {
            ["get", ..] => {
                for key in &words[1..] {
                    if let Some(value) = found(key) {
                        write!(output, "VALUE {key} 0 {}\r\n", value.len())?;
                        output.write_all(&value)?;
                        output.write_all(b"\r\n")?;
                    }
                }
                output.write_all(b"END\r\n")?;
            }
            ["mg", key, "k", "v", "q"] => {
                if let Some(value) = found(key) {
                    write!(output, "VA {} k{key}\r\n", value.len())?;
                    output.write_all(&value)?;
                    output.write_all(b"\r\n")?;
                }
            }
            ["mn"] => output.write_all(b"MN\r\n")?,
            ["set", key, "0", "0", bytes] => {
                let mut value = vec![0; bytes.parse::<usize>().unwrap() + 2];
                input.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                map.lock().unwrap().insert(key.to_owned(), value);
                output.write_all(b"STORED\r\n")?;
            }
            ["GET" | "MGET", ..] => {
                if words[0] == "MGET" {
                    write!(output, "*{}\r\n", words.len() - 1)?;
                }
                for key in &words[1..] {
                    match found(key) {
                        Some(value) => {
                            write!(output, "${}\r\n", value.len())?;
                            output.write_all(&value)?;
                            output.write_all(b"\r\n")?;
                        }
                        None => output.write_all(b"$-1\r\n")?,
                    }
                }
            }
            ["SET", key, value] => {
                let value = value.as_bytes().to_vec();
                map.lock().unwrap().insert(key.to_owned(), value);
                output.write_all(b"+OK\r\n")?;
            }
            _ => output.write_all(b"ERROR\r\n")?,
        }
        line.clear();
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    Ok(())
}

/// Reads an array of so many strings, which have no spaces, and joins them.
fn bulk_strings(input: &mut BufReader<TcpStream>, count: &str) -> std::io::Result<String> {
    let mut words = Vec::new();
    for _ in 0..count.trim().parse::<usize>().unwrap() {
        let (mut length, mut word) = (String::new(), String::new());
        input.read_line(&mut length)?;
        input.read_line(&mut word)?;
        assert_eq!(length.trim(), format!("${}", word.len() - 2));
        words.push(word.trim().to_owned());
    }
    Ok(words.join(" "))
}

fn sound(_: &mut Vec<u8>) {}

fn requests(form: Form, keys: usize, count: u64) -> Requests {
    Requests::compose(form, ITEMS, keys, (0..count).collect())
}

fn once(client: &mut Client, requests: &Requests) -> anyhow::Result<Answered> {
    client.drive(requests, Until::Once, &mut latencies()?)
}

#[test]
fn every_request_is_answered_in_every_form_and_depth() {
    let address = serve(Map::default(), sound);
    for (connections, depth) in [(1, 1), (3, 1), (2, 7)] {
        let mut client = Client::connect(address, connections, depth).unwrap();
        for (form, keys) in [
            (Form::Set, 10),
            (Form::Get, 1),
            (Form::Get, 100),
            (Form::Mg, 1),
            (Form::Mg, 100),
            (Form::RespSet, 10),
            (Form::RespGet, 1),
            (Form::RespGet, 100),
            (Form::RespMget, 1),
            (Form::RespMget, 100),
        ] {
            let answered = once(&mut client, &requests(form, keys, 500)).unwrap();
            let expected = (500 / keys as u64, 500);
            assert_eq!((answered.requests, answered.hits), expected, "{form}");
        }
    }
}

#[test]
fn missing_keys_are_distinguished_from_found_ones() {
    let address = serve(Map::default(), sound);
    let mut client = Client::connect(address, 2, 3).unwrap();
    once(&mut client, &requests(Form::Set, 1, 30)).unwrap();
    for form in [Form::Get, Form::Mg, Form::RespGet, Form::RespMget] {
        for keys in [1, 20] {
            let answered = once(&mut client, &requests(form, keys, 100)).unwrap();
            let expected = (100 / keys as u64, 30);
            assert_eq!((answered.requests, answered.hits), expected, "{form}");
        }
    }
}

#[test]
fn a_turn_lasts_its_time_counts_within_it_and_leaves_nothing_in_flight() {
    let address = serve(Map::default(), sound);
    let mut client = Client::connect(address, 2, 4).unwrap();
    once(&mut client, &requests(Form::Set, 10, 500)).unwrap();
    let gets = requests(Form::Get, 5, 500);
    let until = Until::Time {
        warm_up: Duration::from_millis(5),
        timed: Duration::from_millis(20),
    };
    for _ in 0..2 {
        let mut latencies = latencies().unwrap();
        let answered = client.drive(&gets, until, &mut latencies).unwrap();
        assert!(answered.elapsed >= Duration::from_millis(20));
        assert!(answered.requests > 0 && answered.busy <= 2 * answered.elapsed);
        assert_eq!(answered.hits, 5 * answered.requests);
        assert_eq!(latencies.len(), answered.requests);
        assert!(latencies.min() > 100, "nanoseconds are meant");
    }
    assert_eq!(once(&mut client, &gets).unwrap().requests, 100);
}

#[test]
fn a_wrong_value_is_found_among_many_right_ones() {
    let map = Map::default();
    let address = serve(map, |value| {
        if let Some(last) = value.last_mut() {
            *last = b'x';
        }
    });
    let mut client = Client::connect(address, 1, 1).unwrap();
    once(&mut client, &requests(Form::Set, 1, 500)).unwrap();
    let error = once(&mut client, &requests(Form::Get, 1, 500)).unwrap_err();
    assert!(error.to_string().contains("instead of"), "{error}");
}

#[test]
fn an_error_and_a_closed_connection_are_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        first.write_all(b"SERVER_ERROR busy\r\n").unwrap();
        // The second connection is closed at once.
        drop(listener.accept().unwrap());
        first.read_to_end(&mut Vec::new()).unwrap();
    });
    let gets = requests(Form::Get, 1, 10);
    for reported in ["SERVER_ERROR busy", "the server"] {
        let mut client = Client::connect(address, 1, 1).unwrap();
        let error = once(&mut client, &gets).unwrap_err();
        assert!(error.to_string().contains(reported), "{error}");
    }
}
