//! Pages through the driver that `run` uses: all queues at once, a queue that is disabled in the
//! midst, and a fork.

use std::fmt;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use acomp::{Algorithm, CompressRequest, Context, DecompressRequest, Object, UnitError, PAGE_SIZE};
use anyhow::{anyhow, bail, Context as _, Result};
use iaa::{Driver, Health, Iaa, Settings, Statistics};
use idxd::emulated::QueueId;
use serde::Serialize;

use super::pages::Page;
use super::round_trip::{Latency, BATCH};
use crate::place::Machine;
use crate::table::Table;

/// Time that a queue gets to be used again once it is enabled. A quarantine lasts some milliseconds
/// at first, and doubles.
const RETURN_S: u64 = 5;
const RETURN_NS: u64 = RETURN_S * 1_000_000_000;

/// The result of the driver's test.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The driver's parameters.
    settings: String,
    /// Threads, one on each processor of this process.
    threads: usize,
    /// With 1 and 8 descriptors a request.
    pub rounds: Vec<Round>,
    /// Where the jobs of the rounds went.
    pub queues: Vec<Share>,
    /// The rounds' counters under the kernel driver's names.
    pub counters: Vec<(&'static str, u64)>,
    /// A queue that was disabled in the midst and enabled again; `None` if none was named.
    pub interrupted: Option<Interrupted>,
    /// Pages in a forked child and in its parent.
    pub fork: Fork,
    pub passed: bool,
}

/// All pages once on every thread, verified.
#[derive(Debug, Serialize)]
pub struct Round {
    compressor: &'static str,
    descriptors: usize,
    pub compress: Speed,
    pub decompress: Speed,
    /// Pages that did not shrink: not an error.
    incompressible: usize,
    /// Pages that came back otherwise, or not at all.
    pub differences: usize,
}

#[derive(Debug, Default, Serialize)]
pub struct Speed {
    /// Of one request.
    request: Latency,
    /// Megabytes of plain data per second, of all threads together.
    pub mb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct Share {
    pub queue: String,
    device: String,
    health: &'static str,
    pub compressed: u64,
    pub decompressed: u64,
}

impl Share {
    fn jobs(&self) -> u64 {
        self.compressed + self.decompressed
    }
}

#[derive(Debug, Serialize)]
pub struct Interrupted {
    pub queue: String,
    /// Quarantines of queues during it.
    pub quarantines: u64,
    /// Units for which software worked during it.
    software_units: u64,
    /// Milliseconds from its return to its first job; `None` if it got none.
    pub back_after_ms: Option<u64>,
    pub differences: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fork {
    Passed,
    /// The child found no queue, for example because its parent has the dedicated ones.
    ChildWithoutQueue,
    ChildDiffers,
    ParentDiffers,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
        let mut rounds = Table::new(&[
            "COMPRESSOR",
            "DESCRIPTORS",
            "COMPRESS p50 us",
            "p99 us",
            "MB/s",
            "DECOMPRESS p50 us",
            "p99 us",
            "MB/s",
            "DIFFERENCES",
        ]);
        for round in &self.rounds {
            rounds.row([
                round.compressor.to_owned(),
                round.descriptors.to_string(),
                us(round.compress.request.p50_ns),
                us(round.compress.request.p99_ns),
                format!("{:.0}", round.compress.mb_per_s),
                us(round.decompress.request.p50_ns),
                us(round.decompress.request.p99_ns),
                format!("{:.0}", round.decompress.mb_per_s),
                round.differences.to_string(),
            ]);
        }
        let mut queues = Table::new(&["QUEUE", "DEVICE", "STATE", "COMPRESSED", "DECOMPRESSED"]);
        for share in &self.queues {
            queues.row([
                share.queue.clone(),
                share.device.clone(),
                share.health.to_owned(),
                share.compressed.to_string(),
                share.decompressed.to_string(),
            ]);
        }
        writeln!(f, "{} threads, {}\n\n{rounds}\n{queues}", self.threads, self.settings)?;
        for (name, count) in self.counters.iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "{name} {count}")?;
        }
        if let Some(it) = &self.interrupted {
            let back =
                it.back_after_ms.map_or("no job since then".to_owned(), |ms| format!("jobs after {ms} ms"));
            writeln!(
                f,
                "\n{} disabled: {} quarantines, {} units in software, {} differences; enabled: {back}",
                it.queue, it.quarantines, it.software_units, it.differences
            )?;
        }
        let fork = match self.fork {
            Fork::Passed => "passed",
            Fork::ChildWithoutQueue => "the child found no queue",
            Fork::ChildDiffers => "pages differ in the child",
            Fork::ParentDiffers => "pages differ in the parent",
        };
        writeln!(f, "fork: {fork}")
    }
}

/// Tests the driver of these devices. Disables `interrupt`, or the busiest emulated queue.
///
/// # Errors
/// If the driver has no queue, or the queue gets no jobs or cannot be disabled or enabled.
pub fn run(machine: &Machine, interrupt: Option<&str>, pages: &[Page]) -> Result<Report> {
    let settings = Settings::default();
    let driver = open(machine, &settings)?;
    let cpus = cpus();
    let mut rounds = Vec::new();
    for algorithm in [Iaa::fixed(Arc::clone(&driver)), Iaa::dynamic(Arc::clone(&driver))] {
        for descriptors in [1, BATCH] {
            rounds.push(round(&algorithm, &cpus, descriptors, pages));
        }
    }
    let statistics = driver.statistics();
    let queues = shares(&statistics);
    let busiest = queues.iter().max_by_key(|share| share.jobs());
    let chosen = match interrupt {
        Some(name) => Some(name),
        None => busiest.filter(|_| machine.emulated.is_some()).map(|share| share.queue.as_str()),
    };
    let interrupted = match chosen {
        Some(queue) if !queues.iter().any(|share| share.queue == queue && share.jobs() > 0) => {
            bail!("the driver sends nothing to {queue} from this process's processors");
        }
        Some(queue) => Some(interrupted(machine, &driver, queue, &cpus, pages)?),
        None => None,
    };
    let fork = fork(machine, &driver, pages);
    let passed = rounds.iter().all(|round| round.differences == 0)
        && interrupted.as_ref().is_none_or(|it| it.differences == 0 && it.back_after_ms.is_some())
        && matches!(fork, Fork::Passed | Fork::ChildWithoutQueue);
    Ok(Report {
        settings: format!("{settings:?}"),
        threads: cpus.len(),
        rounds,
        queues,
        counters: statistics.globals().into(),
        interrupted,
        fork,
        passed,
    })
}

fn open(machine: &Machine, settings: &Settings) -> Result<Arc<Driver>> {
    let driver = match &machine.emulated {
        Some(spec) => Driver::emulated(spec, settings.clone()).context("cannot emulate devices")?,
        None => Driver::of_this_machine(settings.clone())
            .map_err(|refusals| anyhow!("no queue: {}", refusals.join("; ")))?,
    };
    Ok(Arc::new(driver))
}

/// The processors of this process. Each has queues of its own in the driver's table.
fn cpus() -> Vec<usize> {
    let mut cpus = vec![0; sys::cpu_count().max(1)];
    let count = sys::thread::allowed_cpus(&mut cpus).clamp(1, cpus.len());
    cpus.truncate(count);
    cpus
}

fn shares(statistics: &Statistics) -> Vec<Share> {
    let health = |health| match health {
        Health::Live => "live",
        Health::Quarantined => "quarantined",
        Health::Revoked => "revoked",
    };
    let of_device = |device: &iaa::DeviceStatistics| {
        let name = device.name.clone();
        device.queues.clone().into_iter().map(move |queue| Share {
            queue: queue.name,
            device: name.clone(),
            health: health(queue.health),
            compressed: queue.traffic.comp_calls,
            decompressed: queue.traffic.decomp_calls,
        })
    };
    statistics.devices.iter().flat_map(of_device).collect()
}

/// What one thread measured.
#[derive(Default)]
struct Measured {
    compress_ns: Vec<u64>,
    decompress_ns: Vec<u64>,
    incompressible: usize,
    differences: usize,
}

/// Compresses and decompresses all pages on a thread of each processor at once.
fn round(algorithm: &Iaa, cpus: &[usize], descriptors: usize, pages: &[Page]) -> Round {
    let start = Barrier::new(cpus.len());
    let work = |cpu: usize| {
        sys::thread::pin(cpu);
        let mut context = context(algorithm);
        start.wait();
        let mut measured = Measured::default();
        pages.chunks(descriptors).for_each(|pages| there_and_back(&mut *context, pages, &mut measured));
        measured
    };
    let all: Vec<Measured> = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let bytes = (pages.len() * PAGE_SIZE) as f64;
    let speed = |of: fn(&Measured) -> &Vec<u64>| {
        // Each thread's own time in such requests: the others' work beside it counts in.
        let rate = |measured: &Measured| bytes * 1e3 / of(measured).iter().sum::<u64>().max(1) as f64;
        Speed {
            request: Latency::of(all.iter().flat_map(of).copied().collect()),
            mb_per_s: all.iter().map(rate).sum(),
        }
    };
    Round {
        compressor: if algorithm.name() == "deflate-iaa" { "deflate-iaa" } else { "deflate-iaa-dynamic" },
        descriptors,
        compress: speed(|measured| &measured.compress_ns),
        decompress: speed(|measured| &measured.decompress_ns),
        incompressible: all.iter().map(|measured| measured.incompressible).sum(),
        differences: all.iter().map(|measured| measured.differences).sum(),
    }
}

fn context(algorithm: &Iaa) -> Box<dyn Context> {
    algorithm.context_for(PAGE_SIZE).expect("a context is memory alone")
}

/// Compresses at most a batch of pages, decompresses those that shrank, and compares them.
fn there_and_back(context: &mut dyn Context, pages: &[Page], measured: &mut Measured) {
    let plain: Vec<&acomp::Page> = pages.iter().map(|page| &page.0).collect();
    let mut packed = [const { Page::ZERO }; BATCH];
    let mut results = [Err(UnitError::Failed); BATCH];
    let mut outputs: Vec<&mut [u8]> = packed.iter_mut().map(|page| &mut page.0[..PAGE_SIZE - 1]).collect();
    let start_ns = sys::now_ns();
    context.compress(&mut CompressRequest {
        pages: &plain,
        unit_size: PAGE_SIZE,
        outputs: &mut outputs[..pages.len()],
        results: &mut results[..pages.len()],
    });
    measured.compress_ns.push(sys::now_ns() - start_ns);
    let (mut objects, mut expected) = (Vec::new(), Vec::new());
    for ((result, page), packed) in results.iter().zip(pages).zip(&packed) {
        match result {
            Ok(len) => {
                objects.push(Object::whole(&packed.0[..*len]));
                expected.push(page);
            }
            Err(UnitError::NoSpace) => measured.incompressible += 1,
            Err(UnitError::Failed) => measured.differences += 1,
        }
    }
    if objects.is_empty() {
        return;
    }
    let mut back = [const { Page::ZERO }; BATCH];
    let mut results = [Err(UnitError::Failed); BATCH];
    let mut outputs: Vec<&mut [u8]> = back.iter_mut().map(|page| &mut page.0[..]).collect();
    let start_ns = sys::now_ns();
    context.decompress(&mut DecompressRequest {
        objects: &objects,
        outputs: &mut outputs[..objects.len()],
        results: &mut results[..objects.len()],
    });
    measured.decompress_ns.push(sys::now_ns() - start_ns);
    for ((result, back), page) in results.iter().zip(&back).zip(expected) {
        measured.differences += usize::from(*result != Ok(PAGE_SIZE) || back.0 != page.0);
    }
}

/// Jobs that a queue got.
fn jobs_of(driver: &Driver, queue: &str) -> u64 {
    let shares = shares(&driver.statistics());
    shares.iter().find(|share| share.queue == queue).map_or(0, Share::jobs)
}

/// Sends pages through the driver while `queue` is disabled, and until it gets jobs again.
fn interrupted(
    machine: &Machine,
    driver: &Arc<Driver>,
    queue: &str,
    cpus: &[usize],
    pages: &[Page],
) -> Result<Interrupted> {
    let algorithm = Iaa::fixed(Arc::clone(driver));
    let mut differences = 0;
    let mut round = || differences += round(&algorithm, cpus, BATCH, pages).differences;
    let before = driver.statistics();
    let software =
        |statistics: &Statistics| statistics.total_sw_comp_calls + statistics.total_sw_decomp_calls;
    set_enabled(machine, driver, queue, false)?;
    round();
    driver.refresh();
    round();
    let during = driver.statistics();
    set_enabled(machine, driver, queue, true)?;
    let (jobs, enabled_ns) = (jobs_of(driver, queue), sys::now_ns());
    let back_after_ns = loop {
        round();
        let after_ns = sys::now_ns() - enabled_ns;
        if jobs_of(driver, queue) > jobs {
            break Some(after_ns);
        }
        if after_ns > RETURN_NS {
            break None;
        }
        // A real queue is opened again; an emulated one ends its quarantine.
        driver.refresh();
        std::thread::sleep(Duration::from_millis(1));
    };
    Ok(Interrupted {
        queue: queue.to_owned(),
        quarantines: during.quarantines - before.quarantines,
        software_units: software(&during) - software(&before),
        back_after_ms: back_after_ns.map(|ns| ns / 1_000_000),
        differences,
    })
}

/// Enables or disables a queue: emulated ones in the machine, real ones by binding their driver.
fn set_enabled(machine: &Machine, driver: &Driver, queue: &str, enabled: bool) -> Result<()> {
    let Some(emulated) = driver.machine() else {
        let verb = if enabled { "bind" } else { "unbind" };
        let path = format!("bus/dsa/drivers/user/{verb}");
        return machine.tree.write(&path, queue).with_context(|| format!("cannot {verb} {queue}"));
    };
    let names = |id: &QueueId| format!("wq{}.{}", id.device, id.queue) == queue;
    let id = emulated.queues().find(names);
    let id = id.ok_or_else(|| anyhow!("there is no queue {queue}"))?;
    match enabled {
        true => emulated.enable_queue(id),
        false => emulated.disable_queue(id),
    }
    Ok(())
}

/// Statuses of the forked child.
const PASSED: i32 = 0;
const DIFFERS: i32 = 1;
const NO_QUEUE: i32 = 2;

/// Forks as a program under `run` does: the child has a copy of emulated devices, and opens real
/// ones again.
fn fork(machine: &Machine, driver: &Arc<Driver>, pages: &[Page]) -> Fork {
    let algorithm = Iaa::fixed(Arc::clone(driver));
    let are_same = |algorithm: &Iaa| {
        let (mut context, mut measured) = (context(algorithm), Measured::default());
        pages.chunks(BATCH).take(8).for_each(|pages| there_and_back(&mut *context, pages, &mut measured));
        measured.differences == 0
    };
    // SAFETY: the threads of the rounds have ended, and the child leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = match algorithm.survives_fork() {
            true => Some(are_same(&algorithm)),
            false => open(machine, driver.settings()).ok().map(|own| are_same(&Iaa::fixed(own))),
        };
        let status = match same {
            Some(true) => PASSED,
            Some(false) => DIFFERS,
            None => NO_QUEUE,
        };
        // SAFETY: ends the child without the parent's destructors.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the status is writable. After a failed fork there is no child, so this fails, too.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    let exited = (child > 0 && waited == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status));
    match exited {
        _ if !are_same(&algorithm) => Fork::ParentDiffers,
        Some(PASSED) => Fork::Passed,
        Some(NO_QUEUE) => Fork::ChildWithoutQueue,
        _ => Fork::ChildDiffers,
    }
}
