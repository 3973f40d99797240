//! Requests, composed before timing starts, and their expected replies.
//!
//! ```text
//!  form   request of two keys                          reply if both are found
//!  get    get key:…1 key:…2\r\n                        VALUE key:…1 0 64\r\n<value>\r\n VALUE key:…2 0 64\r\n<value>\r\n END\r\n
//!  mg     mg key:…1 k v q\r\n mg key:…2 k v q\r\n mn\r\n   VA 64 kkey:…1\r\n<value>\r\n VA 64 kkey:…2\r\n<value>\r\n MN\r\n
//!  set    set key:…1 0 0 64\r\n<value>\r\n set …       STORED\r\n STORED\r\n
//! ```
//!
//! `multi_get_form.rs` has the requests and replies of the form `multi_get`, and `resp_form.rs`
//! those in RESP.
//!
//! A miss leaves out its line and value, in both `get` and `mg`. Keys and values have fixed
//! lengths, so the length of the reply to a request whose keys are all found is known in advance.

use super::data::{Items, KEY_BYTES};
use super::form::{Form, Protocol};
use super::multi_get_form;
use super::resp_form;
use std::io::Write;
use std::ops::Range;

impl Form {
    /// Appends a request for `numbers`.
    pub fn push_request(self, items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
        match self {
            Form::Get => {
                out.extend_from_slice(b"get");
                for number in numbers {
                    out.push(b' ');
                    items.push_key(*number, out);
                }
                out.extend_from_slice(b"\r\n");
            }
            Form::Mg => {
                for number in numbers {
                    out.extend_from_slice(b"mg ");
                    items.push_key(*number, out);
                    out.extend_from_slice(b" k v q\r\n");
                }
                out.extend_from_slice(b"mn\r\n");
            }
            Form::MultiGet => multi_get_form::push_request(items, numbers, out),
            Form::RespGet | Form::RespMget | Form::RespSet => {
                resp_form::push_request(self, items, numbers, out);
            }
            Form::Set => {
                for number in numbers {
                    out.extend_from_slice(b"set ");
                    items.push_key(*number, out);
                    // Writing to a Vec cannot fail.
                    let _ = write!(out, " 0 0 {}\r\n", items.value_bytes);
                    items.push_value(*number, out);
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    /// Appends the reply to a request for `numbers`, all of which are found.
    pub fn push_reply(self, items: &Items, numbers: &[u64], out: &mut Vec<u8>) {
        match self.protocol() {
            Protocol::Memcached if self == Form::MultiGet => {
                return multi_get_form::push_reply(items, numbers, out);
            }
            Protocol::Memcached => {}
            Protocol::Resp => return resp_form::push_reply(self, items, numbers, out),
        }
        for number in numbers {
            match self {
                Form::Get => {
                    out.extend_from_slice(b"VALUE ");
                    items.push_key(*number, out);
                    let _ = write!(out, " 0 {}\r\n", items.value_bytes);
                }
                Form::Mg => {
                    let _ = write!(out, "VA {} k", items.value_bytes);
                    items.push_key(*number, out);
                    out.extend_from_slice(b"\r\n");
                }
                _ => {
                    out.extend_from_slice(b"STORED\r\n");
                    continue;
                }
            }
            items.push_value(*number, out);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(self.tail());
    }

    /// Bytes of that reply.
    pub fn reply_bytes(self, items: &Items, keys: usize) -> usize {
        let digits = items.value_bytes.max(1).ilog10() as usize + 1;
        let hit = match self {
            Form::Get => "VALUE  0 \r\n\r\n".len() + KEY_BYTES + digits + items.value_bytes,
            Form::Mg => "VA  k\r\n\r\n".len() + KEY_BYTES + digits + items.value_bytes,
            Form::MultiGet => return multi_get_form::reply_bytes(items, keys),
            Form::RespGet | Form::RespMget | Form::RespSet => {
                return resp_form::reply_bytes(self, items, keys);
            }
            Form::Set => "STORED\r\n".len(),
        };
        hit * keys + self.tail().len()
    }
}

/// Concatenated requests with equally many keys.
#[derive(Debug)]
pub struct Requests {
    form: Form,
    items: Items,
    keys: usize,
    numbers: Vec<u64>,
    bytes: Vec<u8>,
    /// Where each request begins, and where the last ends.
    bounds: Vec<usize>,
    /// What each found key's part of a reply in RESP begins with.
    part_start: Vec<u8>,
}

impl Requests {
    /// Composes requests of `keys` keys each for `numbers`; a remainder that does not fill a
    /// request is dropped.
    pub fn compose(form: Form, items: Items, keys: usize, mut numbers: Vec<u64>) -> Requests {
        let keys = keys.max(1);
        numbers.truncate(numbers.len() / keys * keys);
        let mut bytes = Vec::new();
        let mut bounds = vec![0];
        for numbers in numbers.chunks_exact(keys) {
            form.push_request(&items, numbers, &mut bytes);
            bounds.push(bytes.len());
        }
        Requests {
            form,
            items,
            keys,
            numbers,
            bytes,
            bounds,
            part_start: resp_form::part_start(form, &items),
        }
    }

    /// The form of the requests.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The number of requests.
    pub fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Keys per request.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The byte range of consecutive requests.
    pub fn range(&self, requests: Range<usize>) -> Range<usize> {
        self.bounds[requests.start]..self.bounds[requests.end]
    }

    /// All requests' bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the reply to a request whose keys are all found.
    pub fn reply_bytes(&self) -> usize {
        self.form.reply_bytes(&self.items, self.keys)
    }

    /// Whether bytes of that length are the reply to a request whose keys are all found, as far as
    /// its end and its lengths show.
    pub fn is_full_reply(&self, reply: &[u8]) -> bool {
        match self.form {
            Form::RespGet | Form::RespMget | Form::RespSet => {
                resp_form::is_full(self.form, &self.items, self.keys, &self.part_start, reply)
            }
            Form::Set => reply.ends_with(b"STORED\r\n"),
            form => reply.ends_with(form.tail()),
        }
    }

    /// Overwrites `out` with the reply to `request` if all its keys are found.
    pub fn expected(&self, request: usize, out: &mut Vec<u8>) {
        out.clear();
        let numbers = &self.numbers[request * self.keys..][..self.keys];
        self.form.push_reply(&self.items, numbers, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: Items = Items {
        count: 10,
        value_bytes: 3,
    };

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn requests_and_replies_are_the_protocols() {
        let composed = |form: Form| {
            let requests = Requests::compose(form, ITEMS, 2, vec![1, 2, 3]);
            assert_eq!(requests.count(), 1, "the third key fills no request");
            let mut reply = Vec::new();
            requests.expected(0, &mut reply);
            (text(requests.bytes()), text(&reply))
        };
        let mut value = Vec::new();
        ITEMS.push_value(1, &mut value);
        let one = text(&value);
        value.clear();
        ITEMS.push_value(2, &mut value);
        let two = text(&value);
        let (a, b) = ("key:000000000001", "key:000000000002");
        assert_eq!(
            composed(Form::Get),
            (
                format!("get {a} {b}\r\n"),
                format!("VALUE {a} 0 3\r\n{one}\r\nVALUE {b} 0 3\r\n{two}\r\nEND\r\n")
            )
        );
        assert_eq!(
            composed(Form::Mg),
            (
                format!("mg {a} k v q\r\nmg {b} k v q\r\nmn\r\n"),
                format!("VA 3 k{a}\r\n{one}\r\nVA 3 k{b}\r\n{two}\r\nMN\r\n")
            )
        );
        assert_eq!(
            composed(Form::Set),
            (
                format!("set {a} 0 0 3\r\n{one}\r\nset {b} 0 0 3\r\n{two}\r\n"),
                "STORED\r\nSTORED\r\n".to_owned()
            )
        );
    }

    #[test]
    fn the_length_of_a_full_reply_is_known_beforehand() {
        for value_bytes in [0, 1, 9, 10, 64, 99, 100, 4096] {
            let items = Items {
                count: 10,
                value_bytes,
            };
            for &form in Form::all_of(Protocol::Memcached) {
                for keys in [1, 7] {
                    let numbers: Vec<u64> = (0..keys as u64).collect();
                    let mut reply = Vec::new();
                    form.push_reply(&items, &numbers, &mut reply);
                    assert_eq!(
                        form.reply_bytes(&items, keys),
                        reply.len(),
                        "{form} {value_bytes}"
                    );
                }
            }
        }
    }

    #[test]
    fn requests_that_follow_each_other_are_one_range() {
        let requests = Requests::compose(Form::Get, ITEMS, 1, vec![4, 5, 6]);
        let one = "get key:000000000004\r\n".len();
        assert_eq!(requests.range(1..3), one..3 * one);
        assert_eq!(requests.range(2..2), 2 * one..2 * one);
        let last = &requests.bytes()[requests.range(2..3)];
        assert_eq!(text(last), "get key:000000000006\r\n");
    }
}
