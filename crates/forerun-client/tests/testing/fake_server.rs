//! Servers that lie, stall, or end in the middle of an answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A server that calls `serve` for each connection. It ends when it is dropped.
pub struct FakeServer {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServer {
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (ends, accepted) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (is_over, count) = (ends.clone(), accepted.clone());
        let serve = Arc::new(serve);
        let accept = move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let (stream, serve) = (stream.expect("a connection"), serve.clone());
                std::thread::spawn(move || serve(stream));
            }
        };
        FakeServer {
            address,
            ends,
            accepted,
            thread: Some(std::thread::spawn(accept)),
        }
    }

    /// Answers the first request, whatever it is, with these bytes. Then closes the connection, or
    /// keeps it open and silent.
    pub fn answering(answer: &[u8], closes: bool) -> FakeServer {
        let answer = answer.to_vec();
        FakeServer::start(move |mut stream| {
            if read_request(&mut stream) && stream.write_all(&answer).is_ok() && !closes {
                wait_for_end(&mut stream);
            }
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread waits for a connection, so open one.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a one-line request. Returns false if the client has closed the connection.
pub fn read_request(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    let mut last = 0;
    while last != b'\n' {
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => last = bytes[count - 1],
            _ => return false,
        }
    }
    true
}

/// Reads until the client closes the connection.
pub fn wait_for_end(stream: &mut TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    while matches!(stream.read(&mut [0; 4096]), Ok(count) if count > 0) {}
}
