//! `uzswap iaa test`: whether every queue returns pages unchanged, how fast, and how devices
//! respond to odd jobs.

mod about;
mod driver;
pub mod pages;
mod probes;
mod round_trip;
mod session;

use anyhow::{bail, Result};
use idxd::emulated::{self, QueueId};
use idxd::sysfs::{Device, Discovery, Queue, QueueMode, QueueType, State};
use idxd::Portal;
use serde::Serialize;
use serde_json::json;

use super::list;
use super::place::{DeviceOptions, Machine};
use super::table::Table;
use round_trip::{Latency, Mode, Report};
use session::{Failure, Session};

const NOOPS: usize = 1000;

/// Round trips on every queue, with latency and throughput
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap iaa test                            every queue that programs may use
  uzswap iaa test --queue wq1.0 --pages 8192
  uzswap iaa test --json > report.json       for a report; it names no host, user or file
  uzswap iaa test --emulate sockets=2,devices=4,queues=2
  sudo uzswap iaa test --driver --interrupt wq1.0    all queues at once, as programs use them

Every page is compressed, inflated by software, inflated by the device, and compared; checksums as well. Pages are \
zeroes, text, structures and random bytes in equal parts. Exit status: 0 when every queue passed, else 125.")]
pub struct Arguments {
    /// Only this queue, as in wq1.0; several times
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<String>,
    /// Pages for each queue and mode
    #[arg(long, value_name = "PAGES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..=262_144))]
    pages: u32,
    /// Test the driver as `run` uses it instead of each queue: all queues at once, a fork
    #[arg(long, conflicts_with_all = ["queue", "no_probes", "sysfs", "dev"])]
    driver: bool,
    /// With --driver: disable this queue in the midst and enable it again (root; all programs lose
    /// it for a moment). Of emulated queues the busiest is taken
    #[arg(long, value_name = "QUEUE", requires = "driver")]
    interrupt: Option<String>,
    /// Leave out the odd jobs that compare a device with the emulated one
    #[arg(long)]
    no_probes: bool,
    #[command(flatten)]
    place: DeviceOptions,
}

#[derive(Debug, Serialize)]
struct Tested {
    queue: String,
    device: String,
    mode: &'static str,
    entries: u32,
    /// The path of descriptors to the queue.
    way: &'static str,
    noop: Option<Latency>,
    round_trips: Vec<Report>,
    probes: Vec<probes::Probe>,
    page_faults: u64,
    retries: u64,
    /// Why it did not work at all.
    error: Option<String>,
    passed: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let found = machine.discover();
    if found.devices.is_empty() {
        bail!("{}", machine.no_device(&found));
    }
    if let Some(spec) = &machine.emulated {
        spec.ensure_real_work()?;
    }
    let all =
        || found.devices.iter().flat_map(|device| device.queues.iter().map(move |queue| (device, queue)));
    if arguments.driver {
        return test_driver(arguments, &machine, &found);
    }
    for name in &arguments.queue {
        if !all().any(|(_, queue)| queue.name == *name) {
            bail!("there is no queue {name}: `uzswap iaa list --all` shows them");
        }
    }
    let chosen: Vec<(&Device, &Queue)> = all()
        .filter(|(device, queue)| match arguments.queue.is_empty() {
            true => queue.is_for_programs() && device.state != State::Disabled,
            false => arguments.queue.contains(&queue.name),
        })
        .collect();
    if chosen.is_empty() {
        let kernel = all().any(|(_, queue)| queue.kind == QueueType::Kernel && queue.state == State::Enabled);
        let kept = if kernel { "the queues there are belong to the kernel; " } else { "" };
        bail!("no queue that programs can use: {kept}`uzswap iaa configure -d 1 -q 1` makes one");
    }
    // Its threads end with it.
    let twin = match &machine.emulated {
        Some(spec) => Some(emulated::Machine::new(spec)?),
        None => None,
    };
    let pages = pages::make(arguments.pages as usize);
    let mut results = Vec::new();
    for (device, queue) in chosen {
        let tested = test(&machine, twin.as_ref(), device, queue, &pages, !arguments.no_probes);
        if !arguments.place.json && atty() {
            eprintln!("{}: {}", tested.queue, if tested.passed { "passed" } else { "failed" });
        }
        results.push(tested);
    }
    let failed = results.iter().filter(|tested| !tested.passed).count();
    match arguments.place.json {
        true => print_json(arguments, &machine, &found, json!({"results": results, "passed": failed == 0}))?,
        false => show(&machine, &results),
    }
    if failed > 0 {
        bail!("{failed} of {} queues failed", results.len());
    }
    Ok(())
}

fn test_driver(arguments: &Arguments, machine: &Machine, found: &Discovery) -> Result<()> {
    let pages = pages::make(arguments.pages as usize);
    let report = driver::run(machine, arguments.interrupt.as_deref(), &pages)?;
    match arguments.place.json {
        true => print_json(arguments, machine, found, json!({"driver": report, "passed": report.passed}))?,
        false => print!("{}{report}", if machine.emulated.is_some() { EMULATED } else { "" }),
    }
    if !report.passed {
        bail!("the driver failed");
    }
    Ok(())
}

/// Prints `results` with the facts about the machine that every report needs.
fn print_json(
    arguments: &Arguments,
    machine: &Machine,
    found: &Discovery,
    results: serde_json::Value,
) -> Result<()> {
    let mut report = json!({
        "format": 1,
        "uzswap": env!("CARGO_PKG_VERSION"),
        "emulated": machine.emulated.is_some(),
        "machine": about::machine(),
        "pages": arguments.pages,
        "devices": list::devices_json(machine, found, false),
    });
    let serde_json::Value::Object(mut results) = results else { unreachable!("an object") };
    report.as_object_mut().expect("an object").append(&mut results);
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

const EMULATED: &str = "Emulated: the figures say nothing of a device's own speed.\n\n";

fn atty() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal()
}

fn test(
    machine: &Machine,
    twin: Option<&emulated::Machine>,
    device: &Device,
    queue: &Queue,
    pages: &[pages::Page],
    with_probes: bool,
) -> Tested {
    let entries = match queue.mode {
        QueueMode::Dedicated => queue.size,
        QueueMode::Shared => queue.threshold.min(queue.size),
    };
    let mut tested = Tested {
        queue: queue.name.clone(),
        device: device.name.clone(),
        mode: queue.mode.word(),
        entries,
        way: "",
        noop: None,
        round_trips: Vec::new(),
        probes: Vec::new(),
        page_faults: 0,
        retries: 0,
        error: None,
        passed: false,
    };
    let (portal, way): (Box<dyn Portal>, &'static str) = match open(machine, twin, device, queue) {
        Ok(opened) => opened,
        Err(refusal) => {
            tested.error = Some(refusal);
            return tested;
        }
    };
    tested.way = way;
    let mut session = Session::new(portal, entries.max(1));
    let mut rounds = || -> Result<(), Failure> {
        tested.noop = Some(round_trip::noops(&mut session, NOOPS)?);
        let mut modes = vec![Mode::Fixed];
        if device.capabilities.header_generation() {
            modes.push(Mode::Dynamic);
        }
        modes.push(Mode::Counted);
        for mode in modes {
            tested.round_trips.push(round_trip::run(&mut session, mode, pages)?);
        }
        if with_probes {
            tested.probes = probes::ask(&mut session, device.generation())?;
        }
        Ok(())
    };
    let result = rounds();
    tested.error = result.err().map(|failure| failure.to_string());
    (tested.page_faults, tested.retries) = (session.page_faults, session.retries);
    let same = tested.round_trips.iter().all(|report| report.differences_total == 0);
    tested.passed = tested.error.is_none() && same;
    tested
}

type Opened = (Box<dyn Portal>, &'static str);

fn open(
    machine: &Machine,
    twin: Option<&emulated::Machine>,
    device: &Device,
    queue: &Queue,
) -> Result<Opened, String> {
    match twin {
        Some(twin) => {
            let id = QueueId { device: device.number as usize, queue: queue.number as usize };
            let portal = twin.open(id).map_err(|refusal| refusal.to_string())?;
            Ok((Box::new(portal), "emulated"))
        }
        None => {
            let portal =
                idxd::real::open(&machine.dev, device, queue).map_err(|refusal| refusal.to_string())?;
            let way = portal.way().word();
            Ok((Box::new(portal), way))
        }
    }
}

fn show(machine: &Machine, results: &[Tested]) {
    if machine.emulated.is_some() {
        print!("{EMULATED}");
    }
    let mut table = Table::new(&[
        "QUEUE",
        "WAY",
        "NOOP us",
        "MODE",
        "RATIO",
        "COMPRESS p50 us",
        "p99 us",
        "BATCH us",
        "DEEP MB/s",
        "DECOMPRESS p50 us",
        "p99 us",
        "BATCH us",
        "DEEP MB/s",
        "RESULT",
    ]);
    let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
    for tested in results {
        let noop = tested.noop.as_ref().map_or_else(|| "-".to_owned(), |noop| us(noop.p50_ns));
        for report in &tested.round_trips {
            let (compress, decompress) = (&report.compress, &report.decompress);
            table.row([
                tested.queue.clone(),
                tested.way.to_owned(),
                noop.clone(),
                report.mode.to_owned(),
                format!("{:.2}", report.ratio),
                us(compress.single.p50_ns),
                us(compress.single.p99_ns),
                us(compress.batch_page_ns as u64),
                format!("{:.0}", compress.deep_mb_per_s),
                us(decompress.single.p50_ns),
                us(decompress.single.p99_ns),
                us(decompress.batch_page_ns as u64),
                format!("{:.0}", decompress.deep_mb_per_s),
                match report.differences_total {
                    0 => "passed".to_owned(),
                    count => format!("{count} differences"),
                },
            ]);
        }
    }
    if !table.is_empty() {
        print!("{table}");
    }
    for tested in results {
        if let Some(error) = &tested.error {
            println!("\n{}: {error}", tested.queue);
        }
        for report in &tested.round_trips {
            for difference in &report.differences {
                println!("\n{}, {}: {difference}", tested.queue, report.mode);
            }
        }
        for probe in tested.probes.iter().filter(|probe| !probe.agrees) {
            println!(
                "\n{}: asked to {}, it says {:#04x}/{} ({}), the emulated device {:#04x}/{} ({}). Please report it.",
                tested.queue,
                probe.question,
                probe.device.status,
                probe.device.error,
                probe.device.meaning,
                probe.emulated.status,
                probe.emulated.error,
                probe.emulated.meaning
            );
        }
        if tested.page_faults > 0 {
            println!(
                "\n{}: {} jobs met page faults and were submitted again",
                tested.queue, tested.page_faults
            );
        }
    }
}
