//! A server of a single connection. The unit tests of `forerun-cli` use this file, too.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener};

/// Sends `bytes` to the first client and ignores what it receives. Returns the port.
pub fn sending(bytes: &[u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let bytes = bytes.to_vec();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    port
}
