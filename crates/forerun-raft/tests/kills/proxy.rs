//! A link from one node to another that loses messages on demand.
//!
//! ```text
//!   node 1 ── requests ──> link 1→2 ──> node 2 ── requests ──> link 2→1 ──> node 1
//!          <── answers ───          <──        <── answers ───          <──
//! ```
//!
//! A link that loses requests is cut one way: node 2 still reaches node 1. One that loses answers
//! delivers requests, but the sender does not learn so.
//!
//! A connection from which bytes were lost stays silent, also when the link is whole again: what
//! follows would not be HTTP. Its users give it up after their time-outs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// What a link loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Nothing,
    Requests,
    Answers,
}

/// Finds the address of the node at the other end.
type Target = Arc<dyn Fn() -> Option<String> + Send + Sync>;

pub struct Link {
    address: String,
    loss: Arc<Mutex<Loss>>,
}

impl Link {
    pub fn start(target: Target) -> std::io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let link = Link {
            address: listener.local_addr()?.to_string(),
            loss: Arc::new(Mutex::new(Loss::Nothing)),
        };
        let loss = Arc::clone(&link.loss);
        // The threads end with the process, which runs this test only.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // A node that is down refuses, so the connection is closed.
                let far = target().and_then(|address| TcpStream::connect(address).ok());
                if let Some(far) = far
                    && let Err(error) = connect(&near, &far, &loss)
                {
                    eprintln!("a connection of a link is lost: {error}");
                }
            }
        });
        Ok(link)
    }

    /// The address that the sender uses.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn lose(&self, what: Loss) {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

fn connect(near: &TcpStream, far: &TcpStream, loss: &Arc<Mutex<Loss>>) -> std::io::Result<()> {
    for (from, to, lost_with) in [(near, far, Loss::Requests), (far, near, Loss::Answers)] {
        to.set_nodelay(true)?;
        let (from, to, loss) = (from.try_clone()?, to.try_clone()?, Arc::clone(loss));
        std::thread::spawn(move || {
            copy(&from, &to, || {
                *loss.lock().unwrap_or_else(PoisonError::into_inner) == lost_with
            });
            // Either side may be closed already.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, is_lost: impl Fn() -> bool) {
    let (mut bytes, mut has_lost) = (vec![0; 1 << 16], false);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        has_lost |= is_lost();
        if !has_lost && to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
