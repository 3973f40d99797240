//! Reads pages for the lookups of a batch that wait for a page that is not in memory.
//!
//! ```text
//!   lookup ── page(source, number) ──> request ──┐ queued        one request per page
//!   lookup ── page(source, number) ──────^       │
//!                                                v
//!   round:     reads what the system has in memory ────────── verify, publish or lend ──> every lookup
//!              submits all other reads together ─ reading ─── verify, publish ──────────> that waits
//! ```
//!
//! What the system has in memory is read straight to where it stays: a frame, if the cache is to
//! keep the page (`cached_reads.rs`).
//!
//! A lookup takes its page from the request, so the page need not stay in the cache. A failure goes
//! only to the lookups that wait for that page.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::future::Future;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::Pin as PinMut;
use std::sync::Arc;
use std::task::{Context, Poll};

use forerun_core::{Driver, Wait};

use super::frames::Pin;
use super::read_buffer::ReadBuffer;
use super::slots::Published;
use super::{PageCache, PageSlots, VerifyChecksums};
use crate::io::IoFile;
use crate::io::reads::{BatchedReads, Done, Read, ReadBackend};
use crate::{Error, Result};

/// Where a page is in its run's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageLocation {
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Bytes in the file, including the trailer.
    pub(crate) stored_len: u32,
    /// Bytes of the uncompressed page.
    pub(crate) raw_len: u32,
}

/// What is checked of a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageChecks {
    /// The checksum and the structure.
    Full,
    /// That it is a leaf, and its header, which bounds what a search reads. For a leaf that was
    /// checked before.
    LeafHeader,
}

/// Where pages are read from: a run.
pub(crate) trait PageSource: Sync {
    fn file(&self) -> &dyn IoFile;

    /// For error messages.
    fn path(&self) -> &Path;

    fn slots(&self) -> &PageSlots;

    /// Rejects a location that cannot hold a page, before memory is allocated for it.
    fn check_location(&self, location: PageLocation) -> Result<()>;

    /// Whether a page is a leaf. Those above are wanted again and again.
    fn is_leaf(&self, page_no: u32) -> bool;

    /// Whether a lookup may trust a leaf that was verified before.
    fn may_be_trusted(&self) -> bool;

    /// Whether reads bypass the memory of the system.
    fn is_direct(&self) -> bool;

    /// What a lookup wants to know of a page in memory before it reads the page.
    fn head(&self, page: &[u8]) -> u64;

    /// Notes where a leaf is, once it has been verified.
    fn note_leaf(&self, page_no: u32, location: PageLocation, page: &[u8]);

    /// Notes where a leaf is that was verified before, if that was not noted then.
    fn note_missing_leaf(&self, page_no: u32, location: PageLocation, page: &[u8]);

    /// Whether the page's stored form begins with the page as it is.
    fn is_raw(&self, location: PageLocation) -> bool;

    /// Checks such a page in its stored form.
    fn check_raw(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
    ) -> Result<(), &'static str>;

    /// Decodes a stored page into `into`, which has the page's length: verifies the checksum,
    /// decompresses, and checks the structure.
    fn unstore(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
        into: &mut [u8],
    ) -> Result<(), &'static str>;
}

/// Bytes of buffers that a thread keeps from one batch to the next. Allocating and clearing them
/// costs as much as a read that the system answers from memory.
const RETAINED_BYTES: usize = 2 << 20;

thread_local! {
    /// This thread's read buffers between batches.
    static RETAINED: Cell<Vec<Vec<u8>>> = const { Cell::new(Vec::new()) };
}

/// Once this many heap pages are lent to a batch, it starts no new lookups. Pages that would fit a
/// frame, and were not to be cached, count by their bytes.
const LENT_PAGES_MAX: usize = 8;
const UNCACHED_BYTES_PER_LENT: usize = 128 << 10;

/// The reads of one batch.
pub(crate) struct Reads<'g> {
    pub(super) cache: &'g PageCache,
    pub(super) pin: &'g Pin,
    backend: ReadBackend,
    pub(super) verify_checksums: VerifyChecksums,
    /// Lookups that wait for a read.
    parked: Cell<usize>,
    /// Pages that were in memory, and pages that had to be read.
    hits: Cell<u64>,
    misses: Cell<u64>,
    /// Heap pages that were lent to this batch, but for those that were not to be cached: these in
    /// bytes.
    lent_pages: Cell<usize>,
    uncached_bytes: Cell<usize>,
    /// The last ghost entry before these reads noted theirs, once it is needed.
    pub(super) last_ghost_before: Cell<Option<u64>>,
    /// Made for the first page that is not in memory. Most lookups need none.
    state: OnceCell<Box<RefCell<ReadState<'g>>>>,
}

#[derive(Default)]
struct ReadState<'g> {
    requests: Vec<Request<'g>>,
    free: Vec<u32>,
    queued: Vec<u32>,
    reads: Option<BatchedReads<'g>>,
    done: Vec<Done>,
    buffers: Vec<Vec<u8>>,
    /// Heap pages of this batch, which are not in the cache.
    lent: Vec<LentPage<'g>>,
    /// Pages that this batch trusted, in vain.
    distrusted: Vec<(&'g PageSlots, u32)>,
}

struct LentPage<'g> {
    slots: &'g PageSlots,
    page_no: u32,
    bytes: &'g [u8],
    /// It was verified before, not when this batch read it.
    is_trusted: bool,
}

struct Request<'g> {
    source: &'g dyn PageSource,
    page_no: u32,
    location: PageLocation,
    /// Whether the page need not be verified if it was verified before.
    may_trust: bool,
    /// Lookups that have not taken the outcome. 0: the request is free, or will be when its read
    /// ends.
    waiters: u32,
    /// `None` while the read is in progress.
    outcome: Option<Result<&'g [u8]>>,
}

impl<'g> Reads<'g> {
    pub(crate) fn new(cache: &'g Arc<PageCache>, pin: &'g Pin, backend: ReadBackend) -> Self {
        Reads {
            cache,
            pin,
            backend,
            verify_checksums: VerifyChecksums::Always,
            parked: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
            lent_pages: Cell::new(0),
            uncached_bytes: Cell::new(0),
            last_ghost_before: Cell::new(None),
            state: OnceCell::new(),
        }
    }

    /// These reads, which trust pages as the option says. Without it, they verify every page.
    pub(crate) fn verifying(mut self, verify_checksums: VerifyChecksums) -> Self {
        self.verify_checksums = verify_checksums;
        self
    }

    /// A page in the cache, together with the rest of its frame: the caller need not know its
    /// length.
    #[inline(always)]
    pub(crate) fn resident(&self, slots: &'g PageSlots, page_no: u32) -> Option<&'g [u8]> {
        let bytes = slots.get(page_no, usize::MAX, self.pin)?;
        self.count_hit();
        Some(bytes)
    }

    /// [`resident`](Self::resident), with the page's [head](PageSource::head).
    #[inline(always)]
    pub(crate) fn resident_with_head(
        &self,
        slots: &'g PageSlots,
        page_no: u32,
    ) -> Option<(&'g [u8], u64)> {
        let page = slots.get_with_head(page_no, self.pin)?;
        self.count_hit();
        Some(page)
    }

    /// Counts a page of which the caller has read a part by itself.
    pub(crate) fn count_miss(&self) {
        self.misses.set(self.misses.get() + 1);
    }

    /// Counts a page that the caller has found in the cache by itself.
    #[inline(always)]
    pub(crate) fn count_hit(&self) {
        self.hits.set(self.hits.get() + 1);
    }

    /// A page that was not resident: a future that completes when it has been read.
    pub(crate) fn page(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        location: PageLocation,
    ) -> PendingPage<'_, 'g> {
        PendingPage {
            reads: self,
            request: Some(self.request(source, page_no, location)),
        }
    }

    /// Whether enough pages are lent that the batch should end soon.
    pub(crate) fn should_end_batch(&self) -> bool {
        let uncached = self.uncached_bytes.get() / UNCACHED_BYTES_PER_LENT;
        self.lent_pages.get() + uncached >= LENT_PAGES_MAX
    }

    /// Whether the bytes of a page were trusted. Then the page is verified when this batch asks for
    /// it again.
    pub(crate) fn distrust(&self, slots: &'g PageSlots, page_no: u32, bytes: &[u8]) -> bool {
        if self.uncached_bytes.get() == 0 {
            return false;
        }
        let mut state = self.state();
        let is_it = |lent: &LentPage<'_>| std::ptr::eq(lent.bytes.as_ptr(), bytes.as_ptr());
        let is_trusted =
            (state.lent.iter().find(|lent| is_it(lent))).is_some_and(|it| it.is_trusted);
        if is_trusted {
            slots.verified().remove(page_no);
            state.distrusted.push((slots, page_no));
        }
        is_trusted
    }

    fn state(&self) -> RefMut<'_, ReadState<'g>> {
        self.state.get_or_init(Default::default).borrow_mut()
    }

    /// The request for a page, with one more waiter.
    fn request(&self, source: &'g dyn PageSource, page_no: u32, location: PageLocation) -> u32 {
        let slots = source.slots();
        let mut state = self.state();
        let state = &mut *state;
        let is_it = |other: &PageSlots, no: u32| no == page_no && std::ptr::eq(other, slots);
        let distrusted = &state.distrusted;
        let may_trust = !distrusted.iter().any(|(other, no)| is_it(other, *no));
        let open = state.requests.iter_mut().enumerate().find(|(_, request)| {
            request.waiters > 0
                && request.location == location
                && request.may_trust == may_trust
                && is_it(request.source.slots(), request.page_no)
        });
        if let Some((at, request)) = open {
            request.waiters += 1;
            // For the later waiters, the page counts as resident.
            self.hits.set(self.hits.get() + 1);
            if request.outcome.is_none() {
                self.parked.set(self.parked.get() + 1);
            }
            return at as u32;
        }
        let lent = state
            .lent
            .iter()
            .find(|lent| is_it(lent.slots, lent.page_no) && (may_trust || !lent.is_trusted))
            .map(|lent| Ok(&lent.bytes[..lent.bytes.len().min(location.raw_len as usize)]));
        let request = Request {
            source,
            page_no,
            location,
            may_trust,
            waiters: 1,
            outcome: lent.or_else(|| check(source, page_no, location).err().map(Err)),
        };
        let wait = request.outcome.is_none();
        if wait {
            self.misses.set(self.misses.get() + 1)
        } else {
            self.hits.set(self.hits.get() + 1)
        }
        let at = match state.free.pop() {
            Some(at) => {
                state.requests[at as usize] = request;
                at
            }
            None => {
                state.requests.push(request);
                state.requests.len() as u32 - 1
            }
        };
        if wait {
            state.queued.push(at);
            self.parked.set(self.parked.get() + 1);
        }
        at
    }

    /// Completes a read.
    fn complete(&self, state: &mut ReadState<'g>, done: Done) {
        let at = done.token as usize;
        let request = &state.requests[at];
        let (source, page_no, location) = (request.source, request.page_no, request.location);
        if request.waiters == 0 {
            // Every lookup that waited for it has been dropped.
            state.free.push(done.token);
        } else {
            let outcome =
                match done.result {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(
                        Error::corrupt_file(source.path(), location.offset, error.to_string()),
                    ),
                    Err(error) => Err(Error::io("read", source.path(), error)),
                    Ok(()) => self.insert_page(source, page_no, location, done.bytes()),
                };
            if outcome.is_err() {
                source.slots().verified().remove(page_no);
            }
            self.answer(state, at, outcome);
        }
        state.buffers.push(done.buffer);
    }

    /// Gives the outcome of a read to the lookups that wait for it.
    fn answer(&self, state: &mut ReadState<'g>, at: usize, outcome: Result<Published<'g>>) {
        let request = &mut state.requests[at];
        let outcome = outcome.map(|published| {
            let (bytes, is_trusted) = match published {
                Published::Cached(bytes) => return bytes,
                Published::Lent(bytes) => {
                    self.lent_pages.set(self.lent_pages.get() + 1);
                    (bytes, false)
                }
                Published::Uncached { bytes, is_trusted } => {
                    self.uncached_bytes
                        .set(self.uncached_bytes.get() + bytes.len());
                    self.cache.count_heap_bytes(bytes.len());
                    (bytes, is_trusted)
                }
            };
            state.lent.push(LentPage {
                slots: request.source.slots(),
                page_no: request.page_no,
                bytes,
                is_trusted,
            });
            bytes
        });
        request.outcome = Some(outcome);
        self.parked
            .set(self.parked.get() - request.waiters as usize);
    }

    /// Whether this thread may read what the system has in memory. The other backends are to read
    /// everything.
    pub(super) fn may_read_cached(&self) -> bool {
        matches!(self.backend, ReadBackend::Auto | ReadBackend::Sync)
    }

    /// Answers queued requests for pages that the system has in memory.
    fn answer_cached(&self, state: &mut ReadState<'g>) {
        if !self.may_read_cached() {
            return;
        }
        let mut queued = std::mem::take(&mut state.queued);
        queued.retain(|at| {
            let request = &state.requests[*at as usize];
            if request.waiters == 0 {
                // Every lookup that waited for it has been dropped.
                state.free.push(*at);
                return false;
            }
            let Request {
                source,
                page_no,
                location,
                may_trust,
                ..
            } = *request;
            let read = self.read_cached(source, page_no, location, may_trust);
            let is_read = read.is_some();
            if let Some(outcome) = read {
                self.answer(state, *at as usize, outcome);
            }
            !is_read
        });
        state.queued = queued;
    }

    /// Verifies a page and puts it into the cache.
    fn insert_page(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        location: PageLocation,
        stored: &[u8],
    ) -> Result<Published<'g>> {
        let raw_len = location.raw_len as usize;
        let mut page =
            self.cache
                .allocate(raw_len, self.pin)
                .ok_or_else(|| Error::OutOfMemory {
                    needed_bytes: raw_len,
                    reason: "for a page of a run".to_owned(),
                })?;
        source
            .unstore(PageChecks::Full, location, stored, page.bytes_mut(raw_len))
            .map_err(|reason| Error::corrupt_file(source.path(), location.offset, reason))?;
        Ok(self.publish(source, page_no, raw_len, page))
    }

    /// Puts a verified page into the cache.
    pub(super) fn publish(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        raw_len: usize,
        mut page: ReadBuffer<'_>,
    ) -> Published<'g> {
        let head = source.head(page.bytes_mut(raw_len));
        source
            .slots()
            .publish(page_no, raw_len, page, head, self.pin)
    }
}

/// Rejects pages that the run does not have.
fn check(source: &dyn PageSource, page_no: u32, location: PageLocation) -> Result<()> {
    if page_no as usize >= source.slots().len() {
        let reason = "a page points to a page that the run does not have";
        return Err(Error::corrupt_file(source.path(), location.offset, reason));
    }
    source.check_location(location)
}

impl Driver for Reads<'_> {
    fn parked(&self) -> usize {
        self.parked.get()
    }

    fn turn(&self, wait: Wait) {
        let mut state = self.state();
        let state = &mut *state;
        let parked = self.parked.get();
        self.answer_cached(state);
        if state.queued.is_empty() && state.reads.is_none() {
            return;
        }
        // Lookups that have their page now do not wait for the others.
        let wait = if self.parked.get() < parked {
            Wait::Never
        } else {
            wait
        };
        let reads = state.reads.get_or_insert_with(|| {
            // A thread that is exiting may have no thread-local values any more.
            state.buffers = RETAINED.try_with(Cell::take).unwrap_or_default();
            BatchedReads::new(self.backend)
        });
        for at in state.queued.drain(..) {
            let request = &state.requests[at as usize];
            let mut buffer = state.buffers.pop().unwrap_or_default();
            buffer.resize(request.location.stored_len as usize, 0);
            reads.push(Read {
                file: request.source.file(),
                offset: request.location.offset,
                buffer,
                token: at,
            });
        }
        let mut done = std::mem::take(&mut state.done);
        let parked = self.parked.get();
        loop {
            if let Some(reads) = &mut state.reads {
                reads.turn(wait, &mut done);
            }
            let idle = done.is_empty();
            for done in done.drain(..) {
                self.complete(state, done);
            }
            // No lookup waits for this read, so none is woken.
            if wait == Wait::Never || self.parked.get() < parked || idle {
                break;
            }
        }
        state.done = done;
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.get_mut() {
            let state = state.get_mut();
            if state.reads.is_some() {
                retain_buffers(std::mem::take(&mut state.buffers));
            }
        }
        // The pin, which owns the pages, is dropped directly after this.
        self.cache.uncount_heap_bytes(self.uncached_bytes.get());
        self.cache
            .counters
            .count(self.hits.get(), self.misses.get());
    }
}

/// Keeps buffers for this thread's next batch, up to the limit.
fn retain_buffers(mut buffers: Vec<Vec<u8>>) {
    let mut bytes = 0;
    buffers.retain(|buffer| {
        bytes += buffer.capacity();
        bytes <= RETAINED_BYTES
    });
    // When the thread exits, they are dropped.
    let _ = RETAINED.try_with(|kept| kept.set(buffers));
}

/// A page that is being read.
#[must_use = "the page is worth waiting for"]
pub(crate) struct PendingPage<'r, 'g> {
    reads: &'r Reads<'g>,
    /// `Some` until the outcome is taken.
    request: Option<u32>,
}

impl<'g> Future for PendingPage<'_, 'g> {
    type Output = Result<&'g [u8]>;

    fn poll(mut self: PinMut<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(at) = self.request else {
            return Poll::Pending;
        };
        let mut state = self.reads.state();
        let request = &mut state.requests[at as usize];
        let Some(outcome) = request.outcome.clone() else {
            return Poll::Pending;
        };
        request.waiters -= 1;
        if request.waiters == 0 {
            state.free.push(at);
        }
        drop(state);
        self.request = None;
        Poll::Ready(outcome)
    }
}

impl Drop for PendingPage<'_, '_> {
    fn drop(&mut self) {
        // Dropped early, because of a panic elsewhere.
        let Some(at) = self.request else {
            return;
        };
        let mut state = self.reads.state();
        let request = &mut state.requests[at as usize];
        request.waiters -= 1;
        if request.outcome.is_none() {
            self.reads.parked.set(self.reads.parked.get() - 1);
        } else if request.waiters == 0 {
            state.free.push(at);
        }
    }
}
