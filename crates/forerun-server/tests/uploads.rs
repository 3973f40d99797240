//! Values that arrive in pieces. A value uses memory as its bytes arrive, and all unfinished values
//! together have a limit.

use std::io::IoSlice;
use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions, Store, StoreResult};
use forerun_server::{Context, Input, NoServer, Output, Session, Settings, Shared};

const LIMIT_BYTES: usize = 64 << 20;
const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// A connection without a socket.
struct Connection {
    session: Session,
    input: Input,
    output: Output,
}

impl Connection {
    fn new() -> Connection {
        Connection {
            session: Session::new(),
            input: Input::new(),
            output: Output::new(),
        }
    }

    /// Sends some bytes in pieces that fit the input, and returns the answer.
    fn send(&mut self, context: &mut Context, bytes: &[u8]) -> Vec<u8> {
        for piece in bytes.chunks(16 << 10) {
            self.input.extend(piece);
            let _ = self
                .session
                .receive(&mut self.input, &mut self.output, context);
        }
        let mut slices = [IoSlice::new(&[])];
        let count = self.output.slices(&mut slices);
        let answer: Vec<u8> = slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        self.output.advance(answer.len());
        answer
    }
}

/// A cache of 64 MiB with this many items of 1 KB.
fn filled(items: u32) -> (Arc<Cache>, Context) {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(LIMIT_BYTES);
    let cache = Arc::new(Cache::new(options).expect("a cache"));
    for n in 0..items {
        let stored = cache.store(Store::set(&n.to_be_bytes(), &[7; 1000][..]));
        assert!(matches!(stored, StoreResult::Stored { .. }));
    }
    let shared = Shared::new(Settings::default(), cache.clone(), Box::new(NoServer));
    (cache, Context::new(Arc::new(shared)))
}

#[test]
fn an_announced_value_evicts_nothing_before_its_bytes_arrive() {
    let (cache, mut context) = filled(40_000);
    let before = cache.stats();
    assert_eq!((before.items, before.evictions), (40_000, 0));
    let mut uploads: Vec<_> = (0..1000).map(|_| Connection::new()).collect();
    for (n, upload) in uploads.iter_mut().enumerate() {
        let line = format!("set upload{n} 0 0 1000000\r\nxx");
        assert_eq!(upload.send(&mut context, line.as_bytes()), b"");
    }
    let during = cache.stats();
    assert_eq!((during.items, during.evictions), (40_000, 0));
    // Two bytes occupy a page.
    assert!(during.buffer_bytes <= 1000 * (8 << 10), "{during:?}");
    let mut other = Connection::new();
    let answer = other.send(&mut context, b"set k 0 0 2\r\nhi\r\nget k\r\n");
    assert_eq!(answer, b"STORED\r\nVALUE k 0 2\r\nhi\r\nEND\r\n");
    // Each upload can still be completed.
    let rest = ["x".repeat(999_998), "\r\n".to_owned()].concat();
    for upload in &mut uploads[..3] {
        assert_eq!(upload.send(&mut context, rest.as_bytes()), b"STORED\r\n");
    }
    let answer = other.send(&mut context, b"mg upload2 s\r\n");
    assert_eq!(answer, b"HD s1000000\r\n");
    drop(uploads);
    assert_eq!(cache.stats().buffer_bytes, 0);
}

#[test]
fn unfinished_values_have_a_limit_together() {
    let (cache, mut context) = filled(40_000);
    let mut uploads: Vec<_> = (0..300).map(|_| Connection::new()).collect();
    let mut refused = Vec::new();
    for (n, upload) in uploads.iter_mut().enumerate() {
        let part = "x".repeat(200_000);
        let line = format!("set upload{n} 0 0 1000000\r\n{part}");
        let answer = upload.send(&mut context, line.as_bytes());
        if !answer.is_empty() {
            assert_eq!(answer, NO_MEMORY);
            refused.push(n);
        }
    }
    let during = cache.stats();
    let limit = LIMIT_BYTES as u64 / 4;
    assert!(during.buffer_bytes <= limit, "{during:?}");
    assert!(during.buffer_bytes > limit * 9 / 10, "{during:?}");
    assert!(refused.len() > 200, "{}", refused.len());
    // Uploads evict no more than their own size, plus one or two blocks.
    assert!(during.items > 40_000 - 16_500, "{during:?}");
    // The rest of a refused value is discarded, and the next command is executed.
    let end = ["x".repeat(800_000), "\r\nmn\r\n".to_owned()].concat();
    let answer = uploads[refused[0]].send(&mut context, end.as_bytes());
    assert_eq!(answer, b"MN\r\n");
    // Small values are stored, and large ones too once there is room.
    let mut other = Connection::new();
    let answer = other.send(&mut context, b"set k 0 0 2\r\nhi\r\n");
    assert_eq!(answer, b"STORED\r\n");
    drop(uploads);
    assert_eq!(cache.stats().buffer_bytes, 0);
    let all = ["set k 0 0 1000000\r\n", &"x".repeat(1_000_000), "\r\n"].concat();
    assert_eq!(other.send(&mut context, all.as_bytes()), b"STORED\r\n");
    assert_eq!(
        context.counters().store_no_memory.get(),
        refused.len() as u64
    );
}

#[test]
fn a_value_of_the_largest_size_fits_however_small_the_limit_is() {
    for (limit_bytes, item_bytes) in [(8 << 20, 4 << 20), (64 << 20, 30 << 20)] {
        let options = CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(limit_bytes)
            .max_item_bytes(item_bytes);
        let cache = Arc::new(Cache::new(options).expect("a cache"));
        let shared = Shared::new(Settings::default(), cache, Box::new(NoServer));
        let mut context = Context::new(Arc::new(shared));
        let len = item_bytes - 300;
        let all = [
            format!("set k 0 0 {len}\r\n"),
            "x".repeat(len),
            "\r\n".into(),
        ]
        .concat();
        for _ in 0..3 {
            let answer = Connection::new().send(&mut context, all.as_bytes());
            assert_eq!(answer, b"STORED\r\n", "{limit_bytes}");
        }
    }
}
