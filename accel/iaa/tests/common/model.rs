//! IAA devices in model time: the driver's real requests, and a clock that only devices move.
//!
//! A submission takes [`Model::SUBMIT_NS`] of the submitting thread. An engine that is free takes
//! the job at once, is busy for [`Model::PAGE_NS`] for each 4096 bytes, and the record is written
//! [`Model::LATENCY_NS`] later. A thread that polls and finds nothing moves the clock to the next
//! record. No other event moves it: neither the driver's own time nor this machine's speed counts,
//! and compressed pages are copied from streams that were made beforehand.
//!
//! The three times are from one publication, the RFC "by_n compression and decompression with
//! Intel IAA" (Linux mailing list, May 2024), and solve its equations for 64 KiB in one, eight and
//! sixteen jobs, of which each found a free engine (an assumption):
//!
//! | jobs | published, ns | |
//! |---|---|---|
//! | 1 | 34,493 | 1 submission, 16 pages, latency |
//! | 8 | 8,344 | 8 submissions, 2 pages, latency |
//! | 16 | 8,837 | 16 submissions, 1 page, latency |
//!
//! For 64 jobs the RFC has 18,272 ns, and these times give 23 % more. The figures of the batching
//! series (3503, 1356 and 706 ns a page) are not used here, so the model can be held against them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use acomp::{CompressRequest, Context, Page, UnitError, MAX_BATCH, PAGE_SIZE};
use iaa::{Device, Driver, Port, Settings, Topology};
use idxd::deflate::Software;
use idxd::{Completion, Descriptor, Opcode, Portal, Record, Status, Submission};

/// A device's shape.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub devices: usize,
    /// Jobs that a device works on at a time. A device has eight engines; with more than two, its
    /// throughput did not rise (Intel QPL, issue 51).
    pub engines: usize,
    /// Entries of a device's one queue.
    pub entries: u32,
}

struct Job {
    due_ns: u64,
    device: usize,
    completion: u64,
    record: Record,
}

struct Inside {
    now_ns: u64,
    /// When each engine of each device is free.
    free_ns: Vec<Vec<u64>>,
    under_way: Vec<Job>,
    /// The device that was polled first since the last submission. Its next poll begins another
    /// round: time passes once a round, after every lane has looked for its records.
    polled_first: Option<usize>,
    /// Most jobs of a device under way at a time.
    depth: usize,
}

impl Inside {
    /// Writes the records that are due; returns whether there were any.
    fn complete(&mut self) -> bool {
        let now = self.now_ns;
        let (due, left): (Vec<_>, Vec<_>) = self.under_way.drain(..).partition(|job| job.due_ns <= now);
        self.under_way = left;
        for job in &due {
            // SAFETY: the submitter keeps its record valid until it is written.
            unsafe { &*(job.completion as *const Completion) }.complete(&job.record);
        }
        !due.is_empty()
    }
}

/// Devices, and the pages that they can compress.
pub struct Model {
    inside: Mutex<Inside>,
    /// By the page's address.
    streams: HashMap<u64, Vec<u8>>,
    entries: u32,
}

impl Model {
    /// Time of a submitting thread for a job.
    pub const SUBMIT_NS: u64 = 315;
    /// An engine's time for 4096 bytes.
    pub const PAGE_NS: u64 = 2025;
    /// From the end of an engine's work to the record.
    pub const LATENCY_NS: u64 = 1775;

    /// The driver of such devices in one package, which compress `pages`.
    pub fn driver(shape: Shape, pages: &[Page], settings: Settings) -> (Arc<Model>, Arc<Driver>) {
        let mut software = Software::new();
        let stream = |page: &Page| {
            let mut out = vec![0; PAGE_SIZE];
            let size = software.compress(page, &mut out, false).expect("a page that shrinks");
            (page.as_ptr() as u64, out[..size].to_vec())
        };
        let model = Arc::new(Model {
            inside: Mutex::new(Inside {
                now_ns: 0,
                free_ns: vec![vec![0; shape.engines]; shape.devices],
                under_way: Vec::new(),
                polled_first: None,
                depth: 0,
            }),
            streams: pages.iter().map(stream).collect(),
            entries: shape.entries,
        });
        let device = |id: usize| Device {
            name: format!("iax{id}"),
            id: id as u32,
            package: 0,
            has_header_generation: false,
            queues: vec![Port {
                name: format!("wq{id}.0"),
                entries: shape.entries,
                blocks_on_fault: true,
                portal: Box::new(Queue { model: Arc::clone(&model), device: id }),
            }],
        };
        let devices = (0..shape.devices).map(device).collect();
        let driver = Driver::new(devices, Topology::regular(1, shape.devices), settings);
        (model, Arc::new(driver))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no panic under the lock")
    }

    pub fn now_ns(&self) -> u64 {
        self.inside().now_ns
    }

    pub fn depth(&self) -> usize {
        self.inside().depth
    }
}

struct Queue {
    model: Arc<Model>,
    device: usize,
}

impl Portal for Queue {
    unsafe fn submit(&self, job: &Descriptor) -> Submission {
        assert_eq!(job.opcode(), Opcode::COMPRESS, "the model only compresses");
        let inside = &mut *self.model.inside();
        inside.now_ns += Model::SUBMIT_NS;
        inside.complete();
        inside.polled_first = None;
        let engine = inside.free_ns[self.device].iter_mut().min().expect("engines");
        let start_ns = inside.now_ns.max(*engine);
        *engine = start_ns + Model::PAGE_NS * u64::from(job.source_size) / PAGE_SIZE as u64;
        let due_ns = *engine + Model::LATENCY_NS;

        let stream = &self.model.streams[&job.source];
        assert!(stream.len() <= job.destination_size as usize);
        // SAFETY: the submitter promises a destination of this size, which nothing else touches.
        unsafe { std::ptr::copy_nonoverlapping(stream.as_ptr(), job.destination as *mut u8, stream.len()) };
        let record = Record { output_size: stream.len() as u32, ..Record::of(Status::SUCCESS) };
        inside.under_way.push(Job { due_ns, device: self.device, completion: job.completion, record });
        let depth = inside.under_way.iter().filter(|job| job.device == self.device).count();
        assert!(depth <= self.model.entries as usize, "a dedicated queue loses this descriptor");
        inside.depth = inside.depth.max(depth);
        Submission::Accepted
    }

    fn revoke(&self) {
        self.model.inside().under_way.retain(|job| job.device != self.device);
    }

    fn progress(&self) {
        let inside = &mut *self.model.inside();
        if inside.complete() {
            return;
        }
        if *inside.polled_first.get_or_insert(self.device) == self.device {
            if let Some(next) = inside.under_way.iter().map(|job| job.due_ns).min() {
                inside.now_ns = next;
                inside.complete();
            }
        }
    }

    fn is_emulated(&self) -> bool {
        true
    }
}

/// Compresses all pages, `batch` a request, and passes each page's stream on.
pub fn compress_all(context: &mut dyn Context, pages: &[Page], batch: usize, mut each: impl FnMut(&[u8])) {
    let mut outputs = [[0; PAGE_SIZE]; MAX_BATCH];
    for pages in pages.chunks(batch) {
        let mut results = [Err(UnitError::Failed); MAX_BATCH];
        let sources: [&Page; MAX_BATCH] = std::array::from_fn(|at| &pages[at % pages.len()]);
        let mut slices = outputs.each_mut().map(<[u8; PAGE_SIZE]>::as_mut_slice);
        context.compress(&mut CompressRequest {
            pages: &sources[..pages.len()],
            unit_size: PAGE_SIZE,
            outputs: &mut slices[..pages.len()],
            results: &mut results[..pages.len()],
        });
        for (output, result) in outputs.iter().zip(&results[..pages.len()]) {
            each(&output[..result.expect("compressed")]);
        }
    }
}
