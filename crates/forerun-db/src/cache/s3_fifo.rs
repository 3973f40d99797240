//! Chooses which page to evict: S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023).
//!
//! ```text
//!   new ──> small, a tenth ──┬─ used twice or more ──> main ──┬─ used ──> main again, one use less
//!                            └─ else: evicted, a ghost        └─ else: evicted
//!   ghost, read again ────────────────────────────────> main
//! ```
//!
//! A scan's pages pass through the small queue and leave the main queue alone. A page's ghost entry
//! is a number in the page's own word. If the page comes back before as many other ghost entries
//! have been made as there are pages, it goes straight to the main queue.
//!
//! In a full cache, a page that the system has in memory begins as a ghost: its first lookup is
//! answered without the cache.
//!
//! The queues are lists linked through the frames' nodes, so that dropping a run removes its pages
//! from the middle.

use std::sync::Arc;

use forerun_core::sync::atomic::{AtomicU64, Ordering};

use super::frames::FrameNo;
use super::page_words::{WordState, Words};

/// One in this many bytes is for the small queue.
const SMALL_SHARE: usize = 10;

/// Uses, besides the first, that promote a page from the small queue to the main one.
const PROMOTION_USES: u64 = 2;

/// Pages to scan for a victim before the next one is taken regardless of its uses, because the lock
/// is held during the scan.
const SCANNED_MAX: usize = 64;

/// No frame.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueKind {
    Small,
    Main,
}

/// A resident page.
#[derive(Debug)]
struct Resident {
    words: Arc<Words>,
    page_no: u32,
    bytes: usize,
    queue: QueueKind,
    /// Neighbors in the queue: the one before, and the one after.
    older: u32,
    newer: u32,
}

#[derive(Debug)]
struct Queue {
    oldest: u32,
    newest: u32,
    bytes: usize,
    len: usize,
}

impl Queue {
    const EMPTY: Queue = Queue {
        oldest: NONE,
        newest: NONE,
        bytes: 0,
        len: 0,
    };
}

/// Numbers ghost entries. Readers do so without the lock.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// Relaxed, both: they order nothing.
    count: AtomicU64,
    /// How many of the last entries count: as many as there are resident pages.
    window: AtomicU64,
}

impl Ghosts {
    /// The number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of a new entry.
    pub(super) fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether an entry still counts. There is no entry 0.
    pub(super) fn is_recent(&self, ghost: u64) -> bool {
        let age = self.count.load(Ordering::Relaxed).saturating_sub(ghost);
        ghost > 0 && age <= self.window.load(Ordering::Relaxed)
    }
}

/// The queues.
#[derive(Debug)]
pub(super) struct S3Fifo {
    /// Indexed by frame, then by entry in the table of large pages.
    nodes: [Vec<Option<Resident>>; 2],
    small: Queue,
    main: Queue,
    /// Evictions so far.
    evictions: u64,
    ghosts: Arc<Ghosts>,
}

/// An evicted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) frame: FrameNo,
    pub(super) bytes: usize,
}

impl S3Fifo {
    pub(super) fn new() -> Self {
        S3Fifo {
            nodes: [Vec::new(), Vec::new()],
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            evictions: 0,
            ghosts: Arc::default(),
        }
    }

    pub(super) fn ghosts(&self) -> &Arc<Ghosts> {
        &self.ghosts
    }

    /// Bytes of resident pages.
    pub(super) fn bytes(&self) -> usize {
        self.small.bytes + self.main.bytes
    }

    /// Pages evicted so far.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Adds a page that is about to become resident. Its word still holds its ghost entry, if any.
    pub(super) fn insert(
        &mut self,
        frame: FrameNo,
        words: &Arc<Words>,
        page_no: u32,
        bytes: usize,
    ) {
        let queue = match words.state(page_no) {
            WordState::Absent(ghost) if self.ghosts.is_recent(ghost) => QueueKind::Main,
            _ => QueueKind::Small,
        };
        let nodes = &mut self.nodes[usize::from(frame.is_large())];
        if nodes.len() <= frame.index() {
            nodes.resize_with(frame.index() + 1, || None);
        }
        nodes[frame.index()] = Some(Resident {
            words: Arc::clone(words),
            page_no,
            bytes,
            queue,
            older: NONE,
            newer: NONE,
        });
        self.push(frame, queue);
    }

    /// Removes a page that its run gives back, and returns whether it was queued.
    pub(super) fn remove(&mut self, frame: FrameNo) -> Option<Victim> {
        self.node(frame)?;
        self.unlink(frame);
        let resident = self.nodes[usize::from(frame.is_large())][frame.index()].take()?;
        Some(Victim {
            frame,
            bytes: resident.bytes,
        })
    }

    /// Makes a page absent and removes it; `None` if there is no page.
    pub(super) fn evict(&mut self) -> Option<Victim> {
        let mut looks = 0;
        loop {
            let small_first = self.small.bytes * SMALL_SHARE > self.bytes();
            let queue = match (self.small.oldest, self.main.oldest) {
                (NONE, NONE) => return None,
                (_, NONE) => QueueKind::Small,
                (NONE, _) => QueueKind::Main,
                _ if small_first => QueueKind::Small,
                _ => QueueKind::Main,
            };
            let frame = FrameNo::from_bits(self.queue(queue).oldest);
            let resident = self.node(frame)?;
            let (words, page_no) = (Arc::clone(&resident.words), resident.page_no);
            let WordState::Resident { uses, .. } = words.state(page_no) else {
                debug_assert!(false, "a page in a queue is resident");
                return self.remove(frame);
            };
            looks += 1;
            let patient = looks <= SCANNED_MAX;
            match queue {
                QueueKind::Small if uses >= PROMOTION_USES && patient => {
                    words.subtract_uses(page_no, frame, uses, 0);
                    self.requeue(frame, QueueKind::Main);
                }
                QueueKind::Main if uses > 0 && patient => {
                    words.subtract_uses(page_no, frame, uses, uses - 1);
                    self.requeue(frame, QueueKind::Main);
                }
                _ => {
                    let remembered = match queue {
                        QueueKind::Small => self.ghosts.next(),
                        QueueKind::Main => 0,
                    };
                    // This fails if the page was used just now. Then it is examined again.
                    if words.unlink(page_no, frame, uses, remembered) {
                        self.evictions += 1;
                        return self.remove(frame);
                    }
                }
            }
        }
    }

    fn queue(&mut self, queue: QueueKind) -> &mut Queue {
        match queue {
            QueueKind::Small => &mut self.small,
            QueueKind::Main => &mut self.main,
        }
    }

    fn node(&mut self, frame: FrameNo) -> Option<&mut Resident> {
        self.nodes[usize::from(frame.is_large())]
            .get_mut(frame.index())?
            .as_mut()
    }

    fn neighbour(&mut self, bits: u32) -> Option<&mut Resident> {
        if bits == NONE {
            return None;
        }
        self.node(FrameNo::from_bits(bits))
    }

    fn requeue(&mut self, frame: FrameNo, queue: QueueKind) {
        self.unlink(frame);
        self.push(frame, queue);
    }

    /// Appends a node, which is in no queue, to a queue.
    fn push(&mut self, frame: FrameNo, queue: QueueKind) {
        let newest = self.queue(queue).newest;
        let Some(node) = self.node(frame) else {
            return;
        };
        node.queue = queue;
        node.older = newest;
        node.newer = NONE;
        let bytes = node.bytes;
        if let Some(newest) = self.neighbour(newest) {
            newest.newer = frame.to_bits();
        }
        let queue = self.queue(queue);
        queue.newest = frame.to_bits();
        if queue.oldest == NONE {
            queue.oldest = frame.to_bits();
        }
        queue.bytes += bytes;
        queue.len += 1;
        self.set_window();
    }

    fn set_window(&self) {
        let pages = self.small.len + self.main.len;
        // Relaxed: see the field.
        self.ghosts.window.store(pages as u64, Ordering::Relaxed);
    }

    /// Removes a node from its queue.
    fn unlink(&mut self, frame: FrameNo) {
        let Some(node) = self.node(frame) else {
            return;
        };
        let (older, newer, bytes, queue) = (node.older, node.newer, node.bytes, node.queue);
        if let Some(older) = self.neighbour(older) {
            older.newer = newer;
        }
        if let Some(newer) = self.neighbour(newer) {
            newer.older = older;
        }
        let queue = self.queue(queue);
        if queue.oldest == frame.to_bits() {
            queue.oldest = newer;
        }
        if queue.newest == frame.to_bits() {
            queue.newest = older;
        }
        queue.bytes -= bytes;
        queue.len -= 1;
        self.set_window();
    }
}
