//! Two threads: one deletes keys, the other copies old values of the same keys at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Context, Input, NoServer, Output, Session, Settings, Shared};

/// A server without sockets. Its threads share a cache.
pub fn server() -> Arc<Shared> {
    let cache = Arc::new(Cache::new(CacheOptions::default()).expect("the options are fine"));
    Arc::new(Shared::new(Settings::default(), cache, Box::new(NoServer)))
}

/// Begins the warm-up of a server and returns its token.
pub fn begin(shared: &Arc<Shared>) -> String {
    let begun = Thread::new(shared).ask(b"warm_up begin 60\r\n");
    begun.split(' ').nth(1).expect("a token").to_owned()
}

/// A thread's session.
pub struct Thread {
    session: Session,
    input: Input,
    output: Output,
    context: Context,
}

impl Thread {
    pub fn new(shared: &Arc<Shared>) -> Thread {
        Thread {
            session: Session::new(),
            input: Input::new(),
            output: Output::new(),
            context: Context::new(Arc::clone(shared)),
        }
    }

    /// Sends bytes and returns the answer, if there is one.
    pub fn ask(&mut self, sent: &[u8]) -> String {
        self.input.extend(sent);
        let _ = self
            .session
            .receive(&mut self.input, &mut self.output, &mut self.context);
        let mut slices = [std::io::IoSlice::new(&[])];
        self.output.slices(&mut slices);
        let answer = String::from_utf8_lossy(&slices[0]).into_owned();
        self.output.advance(answer.len());
        answer
    }
}

/// Deletes and copies each of `keys` keys at the same time. Returns how many of them were there
/// afterwards.
pub fn resurrected(keys: usize) -> usize {
    let shared = server();
    let token = begin(&shared);
    // Each thread begins with a key when the other one has come to it.
    let turns = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let meet = |me: usize, key: usize| {
        turns[me].store(key, Ordering::Release);
        while turns[1 - me].load(Ordering::Acquire) < key {
            std::hint::spin_loop();
            std::thread::yield_now();
        }
    };
    let mut found = 0;
    std::thread::scope(|scope| {
        let mut copier = Thread::new(&shared);
        let (token, meet) = (&token, &meet);
        scope.spawn(move || {
            for key in 1..=keys {
                meet(0, key);
                let fill = format!("warm_fill {token} key:{key} 0 0 1 3\r\nold\r\n");
                let answer = copier.ask(fill.as_bytes());
                assert!(matches!(answer.as_str(), "FILLED\r\n" | "NOT_FILLED\r\n"));
            }
            meet(0, keys + 1);
        });
        let mut client = Thread::new(&shared);
        for key in 1..=keys {
            meet(1, key);
            let answer = client.ask(format!("delete key:{key}\r\n").as_bytes());
            assert!(matches!(answer.as_str(), "DELETED\r\n" | "NOT_FOUND\r\n"));
            // At once, and once more when the copier has come to the next key.
            let before = client.ask(format!("get key:{key}\r\n").as_bytes());
            meet(1, key + 1);
            let after = client.ask(format!("get key:{key}\r\n").as_bytes());
            found += usize::from(before != "END\r\n" || after != "END\r\n");
        }
    });
    found
}
