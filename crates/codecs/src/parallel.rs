//! Spreads a request's units over threads, if a unit takes longer than waking a thread.
//!
//! Every thread compresses single units, so the objects are the same. A request that comes while
//! the threads are busy runs on its own thread: if many workers compress already, more threads gain
//! nothing.

use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Page, PromoteRequest,
    Registry, Tiers, UnitResult, PAGE_SIZE, UNIT_SIZE_MAX,
};

/// Upper bound of a compressor's threads, including the caller's: a request has no more units.
const THREADS_MAX: usize = acomp::MAX_BATCH;
/// Polls of the board before a thread sleeps: some microseconds, to span a store's batches.
const LOOKS: u32 = 2000;

/// Adds the family `parallel`, for programs that may start threads: `parallel:2,zstd:3` uses two
/// threads for each request.
pub fn register(registry: &mut Registry) {
    registry.register("parallel", "parallel:THREADS,COMPRESSOR", |parameter| {
        let (threads, name) = parameter
            .and_then(|parameter| parameter.split_once(','))
            .ok_or("wants threads and a compressor, as in parallel:2,zstd:3")?;
        let threads = match threads.parse() {
            Ok(threads @ 1..=THREADS_MAX) => threads,
            _ => return Err(format!("threads are 1 to {THREADS_MAX}, not {threads:?}")),
        };
        let mut others = Registry::new();
        crate::register_all(&mut others);
        let inner = others.find(name).map_err(|error| error.to_string())?;
        Ok(Arc::new(Parallel::new(inner, threads)) as Arc<dyn Algorithm>)
    });
}

/// A compressor that spreads its requests over several threads.
pub struct Parallel {
    name: String,
    inner: Arc<dyn Algorithm>,
    threads: usize,
    /// Crews by unit size, because some compressors' objects depend on it.
    crews: Mutex<Vec<(usize, Weak<Crew>)>>,
}

impl Parallel {
    /// Uses `threads` threads of `inner` for each request, including the caller's.
    pub fn new(inner: Arc<dyn Algorithm>, threads: usize) -> Self {
        let name = format!("parallel:{threads},{}", inner.name());
        Parallel { name, inner, threads, crews: Mutex::default() }
    }

    fn crew(&self, unit_size: usize) -> Result<Arc<Crew>, ContextError> {
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        crews.retain(|(_, crew)| crew.strong_count() > 0);
        let known = crews.iter().find(|(size, _)| *size == unit_size);
        if let Some(crew) = known.and_then(|(_, crew)| crew.upgrade()) {
            return Ok(crew);
        }
        let crew = Arc::new(Crew::start(&*self.inner, unit_size, self.threads - 1, &self.name)?);
        crews.push((unit_size, Arc::downgrade(&crew)));
        Ok(crew)
    }
}

impl Algorithm for Parallel {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        acomp::MAX_BATCH
    }

    fn is_emulated(&self) -> bool {
        self.inner.is_emulated()
    }

    /// A child process has the contexts but not the threads.
    fn survives_fork(&self) -> bool {
        false
    }

    fn keeps_raw(&self) -> bool {
        self.inner.keeps_raw()
    }

    fn keeps_account(&self) -> bool {
        self.inner.keeps_account()
    }

    fn forget(&self, object: Object<'_>, pages: usize) {
        self.inner.forget(object, pages);
    }

    fn tiers(&self) -> Option<&dyn Tiers> {
        self.inner.tiers()
    }

    fn forms(&self) -> &'static [&'static str] {
        self.inner.forms()
    }

    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        self.inner.count_forms(object, pages, counts);
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        self.context_for(UNIT_SIZE_MAX)
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(Shared { own: self.inner.context_for(unit_size)?, crew: self.crew(unit_size)? }))
    }
}

struct Shared {
    own: Box<dyn Context>,
    crew: Arc<Crew>,
}

impl Context for Shared {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        request.assert_valid();
        if request.units() == 1 {
            return self.own.compress(request);
        }
        let pages_per_unit = request.unit_size / PAGE_SIZE;
        let job = Job {
            next: AtomicUsize::new(0),
            units: request.units(),
            results: request.results.as_mut_ptr(),
            outputs: request.outputs.as_mut_ptr().cast(),
            work: Work::Compress {
                pages: request.pages.as_ptr().cast(),
                len: request.pages.len(),
                pages_per_unit,
            },
        };
        self.crew.run(&job, &mut *self.own);
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        request.assert_valid();
        let units = request.objects.len();
        if units == 1 {
            return self.own.decompress(request);
        }
        let job = Job {
            next: AtomicUsize::new(0),
            units,
            results: request.results.as_mut_ptr(),
            outputs: request.outputs.as_mut_ptr().cast(),
            work: Work::Decompress { objects: request.objects.as_ptr().cast() },
        };
        self.crew.run(&job, &mut *self.own);
    }

    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        self.own.promote(request);
    }
}

enum Work {
    Compress { pages: *const &'static Page, len: usize, pages_per_unit: usize },
    Decompress { objects: *const Object<'static> },
}

/// A request taken apart into requests of one unit each. It lives on its caller's stack in
/// [`Crew::run`], which returns only when no other thread uses it. So the pointers' erased
/// lifetimes are those of that call.
struct Job {
    /// The first unit not taken.
    next: AtomicUsize,
    units: usize,
    results: *mut UnitResult,
    outputs: *mut &'static mut [u8],
    work: Work,
}

impl Job {
    /// Processes units until none is left.
    ///
    /// # Safety
    /// The job's request must be borrowed for as long as this runs.
    unsafe fn help(&self, context: &mut dyn Context) {
        loop {
            let unit = self.next.fetch_add(1, Ordering::Relaxed);
            if unit >= self.units {
                return;
            }
            // SAFETY: both have `units` entries; only this thread has taken this one.
            let (outputs, results) = unsafe {
                (
                    slice::from_raw_parts_mut(self.outputs.add(unit), 1),
                    slice::from_raw_parts_mut(self.results.add(unit), 1),
                )
            };
            match self.work {
                Work::Compress { pages, len, pages_per_unit } => {
                    let first = unit * pages_per_unit;
                    // SAFETY: the unit's part of the request's pages; the last may be shorter.
                    let pages =
                        unsafe { slice::from_raw_parts(pages.add(first), pages_per_unit.min(len - first)) };
                    let unit_size = pages_per_unit * PAGE_SIZE;
                    context.compress(&mut CompressRequest { pages, unit_size, outputs, results });
                }
                Work::Decompress { objects } => {
                    // SAFETY: the request has one object per unit.
                    let objects = unsafe { slice::from_raw_parts(objects.add(unit), 1) };
                    context.decompress(&mut DecompressRequest { objects, outputs, results });
                }
            }
        }
    }
}

/// The present job, under one lock.
#[derive(Default)]
struct Board {
    job: Option<*const Job>,
    /// Counts jobs, so that a thread helps with each once.
    serial: usize,
    active: usize,
    is_over: bool,
}

// SAFETY: the job is shared by reference. It holds a counter, and pointers of which each thread
// uses only its own units' (see `Job::help`).
unsafe impl Send for Board {}

#[derive(Default)]
struct Post {
    board: Mutex<Board>,
    /// A copy outside the lock, for polling.
    serial: AtomicUsize,
    /// Signals a job or the end.
    came: Condvar,
    /// Signals that the last thread has left the job.
    left: Condvar,
}

impl Post {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, context: &mut dyn Context) {
        let mut seen = 0;
        loop {
            for _ in 0..LOOKS {
                if self.serial.load(Ordering::Relaxed) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut board = self.lock();
            while !board.is_over && (board.job.is_none() || board.serial == seen) {
                board = self.came.wait(board).unwrap_or_else(PoisonError::into_inner);
            }
            if board.is_over {
                return;
            }
            let Some(job) = board.job else { continue };
            seen = board.serial;
            board.active += 1;
            drop(board);
            let _leave = Leave(self);
            // SAFETY: `Crew::run` borrows the request, and waits while `active` counts this thread.
            unsafe { (*job).help(context) };
        }
    }

    /// Withdraws the job and waits until no thread uses it.
    fn end(&self) {
        let mut board = self.lock();
        board.job = None;
        while board.active > 0 {
            board = self.left.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends a thread's part in a job, also on panic.
struct Leave<'a>(&'a Post);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut board = self.0.lock();
        board.active -= 1;
        if board.active == 0 {
            self.0.left.notify_all();
        }
    }
}

/// Ends a job, also if the caller's own part panics: the job lives on that thread's stack.
struct End<'a>(&'a Post);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The threads beside the caller's.
struct Crew {
    post: Arc<Post>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    fn start(
        inner: &dyn Algorithm,
        unit_size: usize,
        count: usize,
        name: &str,
    ) -> Result<Self, ContextError> {
        let mut crew = Crew { post: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let mut context = inner.context_for(unit_size)?;
            let post = Arc::clone(&crew.post);
            let thread = std::thread::Builder::new()
                .name("parallel".to_owned())
                .spawn(move || post.serve(&mut *context))
                .map_err(|error| ContextError { algorithm: name.to_owned(), reason: error.to_string() })?;
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Runs all units of a job on this thread and on the idle ones.
    fn run(&self, job: &Job, own: &mut dyn Context) {
        let is_shared = match self.post.board.try_lock() {
            // Another request uses the threads, or some have not left the last one yet.
            Ok(board) if self.threads.is_empty() || board.job.is_some() || board.active > 0 => false,
            Ok(mut board) => {
                board.job = Some(std::ptr::from_ref(job));
                board.serial += 1;
                self.post.serial.store(board.serial, Ordering::Relaxed);
                drop(board);
                self.post.came.notify_all();
                true
            }
            Err(_) => false,
        };
        let _end = is_shared.then(|| End(&self.post));
        // SAFETY: this function's caller borrows the request.
        unsafe { job.help(own) };
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.post.lock().is_over = true;
        self.post.came.notify_all();
        for thread in self.threads.drain(..) {
            // The thread has already printed its panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use acomp::MAX_BATCH;

    use super::*;

    fn pages(seed: u64) -> Vec<Page> {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..64)
            .map(|n| {
                let mut page = [0; PAGE_SIZE];
                let words = 32 + n * 7;
                page.chunks_exact_mut(8).take(words).for_each(|slot| {
                    slot.copy_from_slice(&(next() & 0xffff_00ff_0000_ff0f).to_le_bytes());
                });
                page
            })
            .collect()
    }

    fn compress(
        context: &mut dyn Context,
        pages: &[&Page],
        unit_size: usize,
    ) -> Vec<Result<Vec<u8>, String>> {
        let units = pages.len().div_ceil(unit_size / PAGE_SIZE);
        let mut rooms = vec![vec![0; unit_size]; units];
        let mut results = vec![Ok(0); units];
        let mut outputs: Vec<&mut [u8]> = rooms.iter_mut().map(Vec::as_mut_slice).collect();
        context.compress(&mut CompressRequest {
            pages,
            unit_size,
            outputs: &mut outputs,
            results: &mut results,
        });
        let made = rooms.into_iter().zip(results);
        made.map(|(room, len)| len.map(|len: usize| room[..len].to_vec()).map_err(|error| error.to_string()))
            .collect()
    }

    fn decompress(context: &mut dyn Context, objects: &[Vec<u8>], len: usize) -> Vec<Vec<u8>> {
        let mut rooms = vec![vec![0; len]; objects.len()];
        let mut results = vec![Ok(0); objects.len()];
        let objects: Vec<Object<'_>> = objects.iter().map(|object| Object::whole(object)).collect();
        let mut outputs: Vec<&mut [u8]> = rooms.iter_mut().map(Vec::as_mut_slice).collect();
        context.decompress(&mut DecompressRequest {
            objects: &objects,
            outputs: &mut outputs,
            results: &mut results,
        });
        assert!(results.iter().all(|result| *result == Ok(len)));
        rooms
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        crate::register_all(&mut registry);
        register(&mut registry);
        registry
    }

    /// With one to eight threads and several callers, the bytes equal the plain compressor's.
    #[test]
    fn the_bytes_are_those_of_one_thread() {
        let registry = registry();
        for name in ["zstd:3", "zstd:-5", "lz4", "deflate"] {
            let alone = registry.find(name).unwrap();
            for threads in [1, 2, 3, 8] {
                let parallel = registry.find(&format!("parallel:{threads},{name}")).unwrap();
                assert_eq!(parallel.name(), format!("parallel:{threads},{name}"));
                assert_eq!((parallel.batch_size(), parallel.survives_fork()), (MAX_BATCH, false));
                std::thread::scope(|scope| {
                    for seed in 0..3 {
                        let (alone, parallel) = (&alone, &parallel);
                        scope.spawn(move || {
                            let pages = pages(seed * 77 + 5);
                            let refs: Vec<&Page> = pages.iter().collect();
                            let mut contexts = [alone.context().unwrap(), parallel.context().unwrap()];
                            for (count, unit_size) in
                                [(8, 4096), (1, 4096), (5, 4096), (27, 16384), (64, 32768)]
                            {
                                for at in 0..refs.len() / count {
                                    let part = &refs[at * count..][..count];
                                    let [a, b] = &mut contexts;
                                    let made = compress(&mut **b, part, unit_size);
                                    assert_eq!(made, compress(&mut **a, part, unit_size));
                                    if unit_size == PAGE_SIZE && made.iter().all(Result::is_ok) {
                                        let objects: Vec<_> = made.into_iter().map(Result::unwrap).collect();
                                        let plain = decompress(&mut **b, &objects, PAGE_SIZE);
                                        assert!(plain
                                            .iter()
                                            .zip(part)
                                            .all(|(plain, page)| plain[..] == page[..]));
                                    }
                                }
                            }
                        });
                    }
                });
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let registry = registry();
        let error = |name: &str| registry.find(name).err().expect(name).to_string();
        assert!(error("parallel").contains("parallel:2,zstd:3"));
        assert!(error("parallel:9,zstd").contains("1 to 8"));
        assert!(error("parallel:2,gzip").contains("unknown compressor"));
        assert!(error("parallel:2,parallel:2,zstd").contains("unknown compressor"));
    }
}
