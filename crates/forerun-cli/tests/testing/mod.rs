//! Shared code of the tests of the command.

// Each test file is its own program and uses only some of these helpers.
#![allow(dead_code)]

mod workspace;

#[allow(unused_imports)]
pub use workspace::{Ran, Workspace, files};

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

/// The command under test, and its name in error messages.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forerun");
const NAME: &str = "forerun";

impl Workspace {
    /// Makes a certificate for 127.0.0.1, in the file `cert`, and its key, in `key`. Returns the
    /// arguments of a server that uses them.
    pub fn make_certificate(&self) -> [&'static str; 5] {
        let names = vec!["127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        self.file("cert", &made.cert.pem());
        self.file("key", &made.signing_key.serialize_pem());
        [
            "--enable-ssl",
            "--ssl-chain-cert",
            "cert",
            "--ssl-key",
            "key",
        ]
    }

    /// Starts `forerun serve` at this address with these arguments. Returns the process, and the
    /// address where it listens.
    pub fn serve(&self, address: &str, args: &[&str], log: Stdio) -> (Child, String) {
        let mut all = vec!["serve", "--listen", address];
        all.extend(args);
        let mut child = self
            .command(&all)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("forerun can be started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was asked for");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        (child, address)
    }

    /// Creates a store `db` with the given entries by `forerun load`.
    pub fn store(&self, entries: &[(&str, &str)]) -> &Workspace {
        let rows: String = entries
            .iter()
            .map(|(key, value)| format!("{{\"k\":{key:?},\"v\":{value:?}}}\n"))
            .collect();
        self.file("entries.ndjson", rows)
            .succeeds(&["load", "db", "entries.ndjson", "--key", "k"]);
        self
    }
}

/// `bytes` in gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}
