//! Pages there and back on one queue, checked and timed.

use idxd::aecs::{CompressAecs, Histogram, FIXED};
use idxd::deflate::checksum::crc32;
use idxd::deflate::Software;
use idxd::{Completion, Descriptor, ErrorCode, Record, Status};
use serde::Serialize;

use super::pages::{Page, KINDS};
use super::session::{Failure, Session};

/// Pages of a batch: as zswap's.
pub const BATCH: usize = 8;
/// Most pages in parallel for a queue's throughput.
const DEEP: usize = 64;
/// Differences that are described; further ones are counted.
const DESCRIBED_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With fixed codes: `deflate-iaa`.
    Fixed,
    /// With the device's own codes in one descriptor: `deflate-iaa-dynamic` on generation 2.
    Dynamic,
    /// With software's codes from the device's counts: two descriptors, generation 1.
    Counted,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fixed => "fixed",
            Mode::Dynamic => "dynamic",
            Mode::Counted => "dynamic, two descriptors",
        }
    }
}

/// Nanoseconds of single jobs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Latency {
    /// Half of the jobs took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl Latency {
    /// Of these samples.
    pub fn of(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let at =
            |share: usize| samples.get((samples.len() * share / 100).min(samples.len().saturating_sub(1)));
        Latency {
            p50_ns: at(50).copied().unwrap_or(0),
            p99_ns: at(99).copied().unwrap_or(0),
            max_ns: samples.last().copied().unwrap_or(0),
        }
    }
}

/// Figures of one direction.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// One page at a time.
    pub single: Latency,
    /// Nanoseconds per page in batches of 8.
    pub batch_page_ns: f64,
    /// Nanoseconds per page with up to 64 under way.
    pub deep_page_ns: f64,
    /// Megabytes of plain data per second, with up to 64 pages under way.
    pub deep_mb_per_s: f64,
}

/// The result of one kind of pages.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kind {
    pub kind: &'static str,
    pub pages: usize,
    /// Pages that did not fit into a page: not an error.
    pub incompressible: usize,
    /// Plain bytes by compressed bytes, over the pages that shrank.
    pub ratio: f64,
    #[serde(skip)]
    compressed: u64,
}

/// The result of one mode.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub mode: &'static str,
    pub kinds: Vec<Kind>,
    /// Over all pages that shrank.
    pub ratio: f64,
    pub compress: Figures,
    pub decompress: Figures,
    /// Descriptions of the first differences.
    pub differences: Vec<String>,
    /// The number of all differences.
    pub differences_total: usize,
}

impl Report {
    fn differs(&mut self, text: String) {
        self.differences_total += 1;
        if self.differences.len() < DESCRIBED_MAX {
            self.differences.push(text);
        }
    }
}

/// The buffers of one page's jobs, at fixed addresses.
struct Buffers {
    histogram: Histogram,
    aecs: CompressAecs,
    packed: Page,
    back: Page,
}

const OPEN: Record = Record::of(Status::IN_PROGRESS);

pub fn noops(session: &mut Session, count: usize) -> Result<Latency, Failure> {
    let unused = Completion::new();
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let start_ns = sys::now_ns();
        let mut record = [OPEN];
        // SAFETY: a no-op has no buffers.
        unsafe { session.run(&[Descriptor::noop(&unused)], &mut record)? };
        samples.push(sys::now_ns() - start_ns);
    }
    Ok(Latency::of(samples))
}

/// Compresses, checks, decompresses and checks all pages, one at a time and several at a time.
pub fn run(session: &mut Session, mode: Mode, pages: &[Page]) -> Result<Report, Failure> {
    let mut report = Report {
        mode: mode.name(),
        kinds: KINDS.iter().map(|kind| Kind { kind, ..Kind::default() }).collect(),
        ratio: 0.0,
        compress: Figures::default(),
        decompress: Figures::default(),
        differences: Vec::new(),
        differences_total: 0,
    };
    let mut buffers: Vec<Buffers> = (0..pages.len())
        .map(|_| Buffers {
            histogram: Histogram::ZERO,
            aecs: CompressAecs::ZERO,
            packed: Page([0xa5; 4096]),
            back: Page([0x5a; 4096]),
        })
        .collect();
    let mut software = Software::new();
    let (mut compress_ns, mut decompress_ns) = (Vec::new(), Vec::new());
    let mut sizes = vec![0u32; pages.len()];
    for (index, page) in pages.iter().enumerate() {
        let mut record = [OPEN];
        let start_ns = sys::now_ns();
        compress(session, mode, &pages[index..=index], &mut buffers[index..=index], &mut record)?;
        compress_ns.push(sys::now_ns() - start_ns);
        let kind = index % KINDS.len();
        report.kinds[kind].pages += 1;
        let name = || format!("page {index} ({})", KINDS[kind]);
        match outcome(&record[0]) {
            Ok(Some(size)) => sizes[index] = size,
            Ok(None) => {
                report.kinds[kind].incompressible += 1;
                continue;
            }
            Err(reason) => {
                report.differs(format!("{}: compress: {reason}", name()));
                continue;
            }
        }
        report.kinds[kind].compressed += u64::from(sizes[index]);
        let crc = crc32(0, &page.0);
        if record[0].crc != crc {
            report.differs(format!(
                "{}: compress says CRC {:#010x}, it is {crc:#010x}",
                name(),
                record[0].crc
            ));
        }
        let buffer = &mut buffers[index];
        let packed = &buffer.packed.0[..sizes[index] as usize];
        let mut plain = [0; 4096];
        let inflated = software.inflate(packed, &mut plain);
        if !inflated.is_success() || inflated.output_size != 4096 || plain != page.0 {
            report.differs(format!(
                "{}: software inflates it to something else: {}",
                name(),
                inflated.meaning()
            ));
        }
        let unused = Completion::new();
        let check =
            Descriptor::verify(&unused, (packed.as_ptr(), sizes[index]), (buffer.back.0.as_mut_ptr(), 4096));
        // SAFETY: this page's own buffers.
        unsafe { session.run(&[check], &mut record)? };
        if !record[0].is_success() || record[0].crc != crc {
            report.differs(format!(
                "{}: verify: {}, CRC {:#010x}",
                name(),
                record[0].meaning(),
                record[0].crc
            ));
        }
        let start_ns = sys::now_ns();
        decompress(session, &sizes[index..=index], &mut buffers[index..=index], &mut record)?;
        decompress_ns.push(sys::now_ns() - start_ns);
        let buffer = &buffers[index];
        if !record[0].is_success() || record[0].output_size != 4096 || buffer.back.0 != page.0 {
            report.differs(format!("{}: decompress: {}, not the page", name(), record[0].meaning()));
        } else if record[0].crc != crc {
            report.differs(format!("{}: decompress says CRC {:#010x}", name(), record[0].crc));
        }
    }
    let (mut plain, mut compressed) = (0, 0);
    for kind in &mut report.kinds {
        let bytes = (kind.pages - kind.incompressible) as u64 * 4096;
        kind.ratio = quotient(bytes, kind.compressed);
        plain += bytes;
        compressed += kind.compressed;
    }
    report.ratio = quotient(plain, compressed);
    report.compress.single = Latency::of(compress_ns);
    report.decompress.single = Latency::of(decompress_ns);
    several(session, mode, pages, &mut buffers, &mut report)?;
    Ok(report)
}

fn quotient(above: u64, below: u64) -> f64 {
    if below == 0 {
        0.0
    } else {
        above as f64 / below as f64
    }
}

/// The outcome of a compress record: the size, `None` if it does not fit, or the failure.
fn outcome(record: &Record) -> Result<Option<u32>, String> {
    if record.is_success() {
        return match record.output_size {
            size @ 1..=4096 => Ok(Some(size)),
            size => Err(format!("success with {size} bytes")),
        };
    }
    if record.status.code() == Status::ANALYTICS_ERROR && record.error == ErrorCode::OUTPUT_OVERFLOW {
        return Ok(None);
    }
    Err(format!("status {:#04x}, error {}: {}", record.status.0, record.error.0, record.meaning()))
}

/// Batches of 8 and of the queue's depth.
fn several(
    session: &mut Session,
    mode: Mode,
    pages: &[Page],
    buffers: &mut [Buffers],
    report: &mut Report,
) -> Result<(), Failure> {
    for depth in [BATCH.min(session.depth()), DEEP.min(session.depth())] {
        let mut records = vec![OPEN; pages.len()];
        let start_ns = sys::now_ns();
        for start in (0..pages.len()).step_by(depth) {
            let some = start..(start + depth).min(pages.len());
            let pages = &pages[some.clone()];
            compress(session, mode, pages, &mut buffers[some.clone()], &mut records[some])?;
        }
        let compress_ns = sys::now_ns() - start_ns;
        let sizes: Vec<u32> =
            records.iter().map(|record| outcome(record).ok().flatten().unwrap_or(0)).collect();
        let shrunk = sizes.iter().filter(|size| **size > 0).count();
        for buffer in buffers.iter_mut() {
            buffer.back.0.fill(0x5a);
        }
        let start_ns = sys::now_ns();
        for start in (0..pages.len()).step_by(depth) {
            let some = start..(start + depth).min(pages.len());
            decompress(session, &sizes[some.clone()], &mut buffers[some.clone()], &mut records[some])?;
        }
        let decompress_ns = sys::now_ns() - start_ns;
        for (index, page) in pages.iter().enumerate() {
            if sizes[index] > 0 && buffers[index].back.0 != page.0 {
                let reason = records[index].meaning();
                report.differs(format!("page {index}, {depth} at a time: not the page ({reason})"));
            }
        }
        let each = |ns: u64, count: usize| quotient(ns, count as u64);
        let speed = |page_ns: f64| if page_ns > 0.0 { 4096.0 * 1000.0 / page_ns } else { 0.0 };
        for (figures, ns, count) in [
            (&mut report.compress, compress_ns, pages.len()),
            (&mut report.decompress, decompress_ns, shrunk),
        ] {
            if depth <= BATCH {
                figures.batch_page_ns = each(ns, count);
            }
            figures.deep_page_ns = each(ns, count);
            figures.deep_mb_per_s = speed(figures.deep_page_ns);
        }
    }
    Ok(())
}

/// Compresses pages in parallel, into `packed` of their buffers.
fn compress(
    session: &mut Session,
    mode: Mode,
    pages: &[Page],
    buffers: &mut [Buffers],
    records: &mut [Record],
) -> Result<(), Failure> {
    let unused = Completion::new();
    let source = |page: &Page| (page.0.as_ptr(), 4096);
    if mode == Mode::Counted {
        let count = |(page, buffer): (&Page, &mut Buffers)| {
            Descriptor::compress_statistics(&unused, source(page), &mut buffer.histogram)
        };
        let jobs: Vec<Descriptor> = pages.iter().zip(buffers.iter_mut()).map(count).collect();
        // SAFETY: pages are only read, each job has a histogram of its own, and all live until the
        // jobs are over.
        unsafe { session.run(&jobs, records)? };
        if records.iter().any(|record| !record.is_success()) {
            return Ok(());
        }
        for buffer in buffers.iter_mut() {
            buffer.aecs = CompressAecs::ZERO;
            buffer.aecs.set_dynamic(&buffer.histogram);
        }
    }
    let job = |(page, buffer): (&Page, &mut Buffers)| {
        let destination = (buffer.packed.0.as_mut_ptr(), 4096);
        match mode {
            Mode::Fixed => Descriptor::compress_fixed(&unused, source(page), destination, &FIXED),
            Mode::Dynamic => Descriptor::compress_dynamic(&unused, source(page), destination),
            Mode::Counted => Descriptor::compress_fixed(&unused, source(page), destination, &buffer.aecs),
        }
    };
    let jobs: Vec<Descriptor> = pages.iter().zip(buffers.iter_mut()).map(job).collect();
    // SAFETY: as above; each job has a destination of its own, and code tables are only read.
    unsafe { session.run(&jobs, records) }
}

/// Decompresses all compressed pages in parallel, into `back` of their buffers.
fn decompress(
    session: &mut Session,
    sizes: &[u32],
    buffers: &mut [Buffers],
    records: &mut [Record],
) -> Result<(), Failure> {
    let unused = Completion::new();
    let mut jobs = Vec::with_capacity(sizes.len());
    let mut places = Vec::with_capacity(sizes.len());
    for (index, buffer) in buffers.iter_mut().enumerate().filter(|(index, _)| sizes[*index] > 0) {
        let source = (buffer.packed.0.as_ptr(), sizes[index]);
        jobs.push(Descriptor::decompress(&unused, source, (buffer.back.0.as_mut_ptr(), 4096)));
        places.push(index);
    }
    let mut completed = vec![OPEN; jobs.len()];
    // SAFETY: each job has buffers of its own, which live until the jobs are over.
    unsafe { session.run(&jobs, &mut completed)? };
    for (place, record) in places.into_iter().zip(completed) {
        records[place] = record;
    }
    Ok(())
}
