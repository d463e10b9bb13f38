//! What one rendering may use. A rendering has a thread of its own, so its counters are the
//! thread's. Instructions are counted by minijinja (its fuel); every operation that can take long
//! or make something large calls `check` afterwards, and none can overshoot by much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

pub const MAX_INSTRUCTIONS: u64 = 20_000_000;
pub const MAX_TIME: Duration = Duration::from_secs(3);
const MAX_MEMORY_BYTES: isize = 256 << 20;
/// Also of what is captured on the way ({% set %} blocks, macros).
const MAX_OUTPUT_BYTES: usize = 32 << 20;
pub const MAX_STRING_BYTES: usize = 32 << 20;
/// Nested values are walked and dropped recursively; this is for the deepest of them.
pub const STACK_BYTES: usize = 256 << 20;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static OUTPUT_BYTES: Cell<usize> = const { Cell::new(0) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    static NOW_S: Cell<Option<i64>> = const { Cell::new(None) };
    static REFUSAL: RefCell<Option<String>> = const { RefCell::new(None) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn count(bytes: isize) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: passes every call on; counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        System.dealloc(block, layout)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        System.realloc(block, layout, size)
    }
}

/// Starts this thread's rendering. `now_s` is the time that templates see; None = the clock.
pub fn begin(now_s: Option<i64>) {
    NOW_S.with(|now| now.set(now_s));
    LIVE_BYTES.with(|live| live.set(0));
    OUTPUT_BYTES.with(|bytes| bytes.set(0));
    DEADLINE.with(|deadline| deadline.set(Some(Instant::now() + MAX_TIME)));
}

pub fn now_s() -> Option<i64> {
    NOW_S.with(Cell::get)
}

pub fn exceeded(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the template exceeds a limit: {what}"))
}

pub fn check() -> Result<(), Error> {
    if LIVE_BYTES.with(Cell::get) > MAX_MEMORY_BYTES {
        return Err(exceeded("it uses too much memory"));
    }
    match DEADLINE.with(Cell::get) {
        Some(deadline) if Instant::now() > deadline => Err(exceeded("it takes too long")),
        _ => Ok(()),
    }
}

pub fn count_output(bytes: usize) -> Result<(), Error> {
    let total = OUTPUT_BYTES.with(Cell::get) + bytes;
    OUTPUT_BYTES.with(|sum| sum.set(total));
    if total > MAX_OUTPUT_BYTES {
        return Err(exceeded("its output is too large"));
    }
    check()
}

/// Text under construction that cannot grow past the limit.
#[derive(Default)]
pub struct Text(String);

impl Text {
    pub fn push(&mut self, piece: &str) -> Result<(), Error> {
        if self.0.len() + piece.len() > MAX_STRING_BYTES {
            return Err(exceeded("a string is too large"));
        }
        self.0.push_str(piece);
        Ok(())
    }

    pub fn push_char(&mut self, c: char) -> Result<(), Error> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub fn repeat(&mut self, piece: &str, times: usize) -> Result<(), Error> {
        if piece.len().saturating_mul(times) > MAX_STRING_BYTES {
            return Err(exceeded("a string is too large"));
        }
        self.push(&piece.repeat(times))
    }

    pub fn finish(self) -> String {
        self.0
    }
}

/// The template's own refusal (raise_exception), which is reported as it is.
pub fn refuse(message: String) -> Error {
    REFUSAL.with(|refusal| refusal.replace(Some(message.clone())));
    Error::new(ErrorKind::InvalidOperation, message)
}

pub fn take_refusal() -> Option<String> {
    REFUSAL.with(|refusal| refusal.take())
}
