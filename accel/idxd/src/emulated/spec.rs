//! The specification of emulated devices, as text:
//! `sockets=2,devices=4,engines=8,queues=2,generation=1`.

use std::path::PathBuf;
use std::str::FromStr;

use super::faults::Faults;
use crate::words::words;
use crate::Refusal;

/// Entries of a device, shared by its queues.
pub const ENTRIES: u32 = 128;
/// Most queues of a device.
pub const QUEUES_MAX: u32 = 8;
/// Most engines of a device.
pub const ENGINES_MAX: u32 = 8;

/// Dedicated to one opener, or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueMode {
    /// Submissions are posted; the owner counts.
    Dedicated,
    /// Submissions may be refused.
    Shared,
}

/// The thread that does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// The submitting thread, inside the submission. Deterministic, without further threads.
    Inline,
    /// The polling thread. Also deterministic; jobs stay in their queue until then.
    Poll,
    /// A thread for each engine.
    Threads,
}

/// The kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The job.
    Real,
    /// None: success at once, half the input as output size. Measures a driver's own cost.
    Null,
    /// None, for a time per page. Engines work in parallel however few CPUs the machine has.
    Timed {
        /// Nanoseconds that an engine is busy for 4096 bytes of input.
        page_ns: u64,
    },
}

/// The source of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock.
    Real,
    /// [`STEP_NS`] for each poll: the same at every run.
    Steps,
}

words!(QueueMode, "dedicated, shared", Dedicated => "dedicated", Shared => "shared");
words!(Run, "inline, poll, threads", Inline => "inline", Poll => "poll", Threads => "threads");
words!(Clock, "real, steps", Real => "real", Steps => "steps");

fn word<T: FromStr<Err = Refusal>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|Refusal(reason)| reason)
}

/// Nanoseconds that a poll adds to [`Clock::Steps`].
pub const STEP_NS: u64 = 100;

/// Machines to emulate.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulateSpec {
    /// Packages.
    pub sockets: u32,
    /// Devices a package.
    pub devices: u32,
    /// Engines a device, at most 8.
    pub engines: u32,
    /// Queues a device, at most 8; they share 128 entries.
    pub queues: u32,
    /// 1: Sapphire and Emerald Rapids. 2: Granite Rapids, with header generation.
    pub generation: u32,
    /// Kind of all queues.
    pub mode: QueueMode,
    /// Occupancy from which a shared queue refuses, 1 to the queue's size; 0 for the size.
    pub threshold: u32,
    /// The thread that does the work.
    pub run: Run,
    /// The kind of work.
    pub work: Work,
    /// Nanoseconds from the end of an engine's work to the job's completion.
    pub latency_ns: u64,
    /// The source of time.
    pub clock: Clock,
    /// Whether queues allow block-on-fault.
    pub block_on_fault: bool,
    /// Seed of the faults.
    pub seed: u64,
    /// The faults.
    pub faults: Faults,
    /// A [control file](super::Control): the devices and queues now removed or disabled.
    pub control: Option<PathBuf>,
}

impl Default for EmulateSpec {
    fn default() -> Self {
        EmulateSpec {
            sockets: 1,
            devices: 1,
            engines: 8,
            queues: 1,
            generation: 1,
            mode: QueueMode::Dedicated,
            threshold: 0,
            run: Run::Inline,
            work: Work::Real,
            latency_ns: 0,
            clock: Clock::Real,
            block_on_fault: false,
            seed: 0,
            faults: Faults::default(),
            control: None,
        }
    }
}

const KEYS: &str = "sockets, devices, engines, queues, generation, mode=dedicated|shared, threshold, \
run=inline|poll|threads, work=real|null|timed:NS, latency_ns, clock=real|steps, block_on_fault=0|1, seed, \
faults=lost:P/page:P/hardware:P/halt:P/disable:P/retry:P/slow:P, control=FILE";

fn refuse(part: &str, reason: impl std::fmt::Display) -> Refusal {
    Refusal(format!("emulation {part:?}: {reason}"))
}

impl EmulateSpec {
    /// Entries of each queue.
    pub fn queue_size(&self) -> u32 {
        ENTRIES / self.queues
    }

    /// Checks that the devices execute their jobs. Null and timed work report success and write
    /// nothing, which loses stored data: such devices are for benches of a driver, which look at no
    /// output.
    ///
    /// # Errors
    /// The part and the fix.
    pub fn ensure_real_work(&self) -> Result<(), Refusal> {
        let part = match self.work {
            Work::Real => return Ok(()),
            Work::Null => "work=null".to_owned(),
            Work::Timed { page_ns } => format!("work=timed:{page_ns}"),
        };
        let reason =
            "such a device reports success and writes nothing, so every page would be lost; it is only for \
benches of the driver: leave out work=";
        Err(refuse(&part, reason))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |least: u64, most: u64| match value.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(format!("wants a number from {least} to {most}")),
        };
        let count = |most: u32| number(1, u64::from(most)).map(|number| number as u32);
        match key {
            "sockets" => self.sockets = count(8)?,
            "devices" => self.devices = count(16)?,
            "engines" => self.engines = count(ENGINES_MAX)?,
            "queues" => self.queues = count(QUEUES_MAX)?,
            "generation" => self.generation = count(2)?,
            "threshold" => self.threshold = count(ENTRIES)?,
            "latency_ns" => self.latency_ns = number(0, 1_000_000_000)?,
            "seed" => self.seed = number(0, u64::MAX)?,
            "block_on_fault" => self.block_on_fault = number(0, 1)? == 1,
            "faults" => self.faults = value.parse()?,
            "control" => match value.starts_with('/') {
                true => self.control = Some(value.into()),
                false => return Err("wants an absolute path: programs change their directory".to_owned()),
            },
            "mode" => self.mode = word(value)?,
            "run" => self.run = word(value)?,
            "clock" => self.clock = word(value)?,
            "work" => {
                let page_ns = |ns: &str| match ns.parse() {
                    Ok(page_ns @ 1..=1_000_000_000) => Ok(page_ns),
                    _ => Err("wants the nanoseconds of a page, as in timed:3500".to_owned()),
                };
                self.work = match (value, value.split_once(':')) {
                    ("real", _) => Work::Real,
                    ("null", _) => Work::Null,
                    (_, Some(("timed", ns))) => Work::Timed { page_ns: page_ns(ns)? },
                    _ => return Err("wants real, null or timed:3500".to_owned()),
                }
            }
            _ => return Err(format!("unknown; known: {KEYS}")),
        }
        Ok(())
    }
}

/// Parses `key=value,key=value`; `inline`, `poll` and `threads` may stand alone. Missing keys have
/// defaults.
impl FromStr for EmulateSpec {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let mut spec = EmulateSpec::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |reason: String| refuse(part, reason);
            match part.split_once('=') {
                Some((key, value)) => spec.set(key, value).map_err(wrong)?,
                None if matches!(part, "inline" | "poll" | "threads") => {
                    spec.set("run", part).map_err(wrong)?
                }
                None => return Err(wrong(format!("wants key=value; known: {KEYS}"))),
            }
        }
        if spec.threshold > spec.queue_size() {
            return Err(refuse(
                "threshold",
                "above the size of a queue, which is 128 by the number of queues",
            ));
        }
        if spec.run == Run::Threads && spec.clock == Clock::Steps {
            return Err(refuse("clock=steps", "threads live in real time; use run=inline or run=poll"));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_example() {
        let spec: EmulateSpec = "sockets=2,devices=4,engines=8,queues=2,generation=1".parse().unwrap();
        assert_eq!((spec.sockets, spec.devices, spec.engines, spec.queues), (2, 4, 8, 2));
        assert_eq!((spec.generation, spec.queue_size(), spec.run), (1, 64, Run::Inline));
        assert_eq!("".parse(), Ok(EmulateSpec::default()));
    }

    #[test]
    fn every_key_is_understood() {
        let text = "mode=shared,threshold=9,threads,work=timed:3500,latency_ns=900,seed=7,block_on_fault=1,faults=lost:0.5";
        let spec: EmulateSpec = text.parse().unwrap();
        assert_eq!((spec.mode, spec.threshold, spec.run), (QueueMode::Shared, 9, Run::Threads));
        assert_eq!((spec.work, spec.latency_ns, spec.seed), (Work::Timed { page_ns: 3500 }, 900, 7));
        assert!(spec.block_on_fault && spec.faults.lost == 0.5);
        assert_eq!("run=poll,clock=steps".parse::<EmulateSpec>().unwrap().clock, Clock::Steps);
    }

    #[test]
    fn devices_that_do_no_work_are_told_from_those_that_do() {
        let spec = |text: &str| text.parse::<EmulateSpec>().unwrap();
        for text in ["", "work=real", "run=poll,latency_ns=900"] {
            assert_eq!(spec(text).ensure_real_work(), Ok(()), "{text}");
        }
        for text in ["work=null", "work=timed:3500"] {
            let error = spec(text).ensure_real_work().unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("lost") && error.contains("leave out work="),
                "{error}"
            );
        }
    }

    #[test]
    fn mistakes_name_the_part_and_the_cure() {
        let error = |text: &str| text.parse::<EmulateSpec>().unwrap_err().to_string();
        assert!(error("devices=0").contains("\"devices=0\": wants a number from 1 to 16"));
        assert!(error("wheels=4").contains("known: sockets"));
        assert!(error("fast").contains("key=value"));
        assert!(error("queues=8,threshold=17").contains("threshold"));
        assert!(error("threads,clock=steps").contains("real time"));
        for work in ["timed", "timed:", "timed:fast", "timed:0", "real:", "real:3500", "null:"] {
            let error = error(&format!("work={work}"));
            assert!(error.contains("as in timed:3500") || error.contains("null or timed:3500"), "{error}");
        }
        assert!(error("faults=lost:9").contains("between 0 and 1"));
    }
}
