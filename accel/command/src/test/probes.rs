//! Questions that no available document settles: the same odd jobs for the device and for the
//! emulated one. A difference is no failure of the device; it corrects
//! `accel/idxd/src/assumptions.rs`.

use idxd::aecs::{CompressAecs, FIXED};
use idxd::emulated::{EmulateSpec, Machine, QueueId};
use idxd::{compress_flags, decompress_flags, flags, Completion, Descriptor, Record, Status};
use serde::Serialize;

use super::pages::{make, Page};
use super::session::{Failure, Session};

/// The result of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub status: u8,
    pub error: u8,
    /// Bytes of output in the record.
    pub output_size: u32,
    /// Bytes of input in the record.
    pub bytes_completed: u32,
    /// Refused flags in the record.
    pub invalid_flags: u32,
    pub meaning: &'static str,
}

/// A question with both results.
#[derive(Debug, Clone, Serialize)]
pub struct Probe {
    pub question: &'static str,
    /// The device's result.
    pub device: Outcome,
    /// The emulated device's result.
    pub emulated: Outcome,
    /// Whether status and error are the same.
    pub agrees: bool,
}

struct Memory {
    page: Page,
    random: Page,
    aecs: CompressAecs,
    no_codes: CompressAecs,
    out: [Page; 2],
}

/// Odd streams: block type 3, stored lengths that do not match, an end without end-of-block, a
/// distance before the start, and a distance of 4097 behind 4097 stored bytes.
fn streams() -> [Vec<u8>; 5] {
    let mut far = vec![0x00, 0x01, 0x10, 0xfe, 0xef];
    far.extend((0..4097u32).map(|at| at as u8));
    // Final, fixed, length 3, distance symbol 24 (4097 and 11 extra bits of zero), end of block.
    far.extend([0x03, 0x0e, 0x00, 0x00, 0x00]);
    // "A", then length 3 at distance 2.
    [
        vec![0x07, 0, 0],
        vec![0x01, 5, 0, 5, 0, 1, 2, 3, 4, 5],
        vec![0x73, 0x04],
        vec![0x73, 0x04, 0x42, 0x00],
        far,
    ]
}

/// Asks all questions of a device of this generation.
pub fn ask(session: &mut Session, generation: u32) -> Result<Vec<Probe>, Failure> {
    let spec = EmulateSpec { generation, ..EmulateSpec::default() };
    let machine = Machine::new(&spec).expect("without threads nothing can fail");
    let twin = machine.open(QueueId { device: 0, queue: 0 }).expect("it has no other user");
    let mut twin = Session::new(Box::new(twin), spec.queue_size());
    let pages = make(4);
    let mut memory = Box::new(Memory {
        page: pages[1].clone(),
        random: pages[3].clone(),
        aecs: FIXED.clone(),
        no_codes: CompressAecs::ZERO,
        out: [Page::ZERO; 2],
    });
    let streams = streams();
    let mut probes = Vec::new();
    for (question, job) in questions(&mut memory, &streams) {
        let device = outcome_of(session, &job)?;
        let emulated = outcome_of(&mut twin, &job)?;
        let agrees = (device.status, device.error) == (emulated.status, emulated.error);
        probes.push(Probe { question, device, emulated, agrees });
    }
    Ok(probes)
}

fn outcome_of(session: &mut Session, job: &Descriptor) -> Result<Outcome, Failure> {
    let mut records = [Record::of(Status::IN_PROGRESS)];
    // SAFETY: the buffers are those of `questions`, one job after the other, and live in `ask`. Odd
    // jobs name no other memory: only their flags, sizes and alignment are odd.
    unsafe { session.run(std::slice::from_ref(job), &mut records)? };
    let record = &records[0];
    Ok(Outcome {
        status: record.status.0,
        error: record.error.0,
        output_size: record.output_size,
        bytes_completed: record.bytes_completed,
        invalid_flags: record.invalid_flags,
        meaning: record.meaning(),
    })
}

fn questions(memory: &mut Memory, streams: &[Vec<u8>; 5]) -> Vec<(&'static str, Descriptor)> {
    let unused = Completion::new();
    let at: *mut u8 = memory.out.as_mut_ptr().cast();
    let (out, small) = ((at, 8192), (at, 100));
    let page = (memory.page.0.as_ptr(), 4096);
    let random = (memory.random.0.as_ptr(), 4096);
    let compress = Descriptor::compress_fixed(&unused, page, out, &memory.aecs);
    let stream = |index: usize| {
        let stream = &streams[index];
        Descriptor::decompress(&unused, (stream.as_ptr(), stream.len() as u32), out).of_many_blocks()
    };
    // "AAAA" in a fixed block.
    static SMALL: [u8; 6] = [0x73, 0x74, 0x74, 0x74, 0x04, 0x00];
    let inflate = Descriptor::decompress(&unused, (SMALL.as_ptr(), 6), out);
    let set = |job: Descriptor, change: &dyn Fn(&mut Descriptor)| {
        let mut job = job;
        change(&mut job);
        job
    };
    vec![
        ("compress a page", compress),
        ("inflate a small stream", inflate),
        ("compress into too little room", Descriptor::compress_fixed(&unused, random, small, &memory.aecs)),
        ("inflate into too little room", set(inflate, &|job| job.destination_size = 2)),
        ("inflate without output", set(inflate, &|job| job.codec_flags |= decompress_flags::SUPPRESS_OUTPUT)),
        (
            "inflate with the enable flag clear",
            set(inflate, &|job| job.codec_flags &= !decompress_flags::ENABLE),
        ),
        (
            "inflate with a reserved codec flag",
            set(inflate, &|job| job.codec_flags |= decompress_flags::RESERVED),
        ),
        ("inflate block type 3", stream(0)),
        ("inflate stored lengths that do not match", stream(1)),
        ("inflate a stream without end of block", stream(2)),
        ("inflate a distance before the start", stream(3)),
        ("inflate a distance of 4097", stream(4)),
        ("inflate nothing", set(inflate, &|job| job.source_size = 0)),
        ("compress nothing", set(compress, &|job| job.source_size = 0)),
        ("compress with an AECS address that is not aligned", set(compress, &|job| job.source_2 += 8)),
        ("compress with an AECS size that is not aligned", set(compress, &|job| job.source_2_size -= 8)),
        ("compress with an AECS that is too short", set(compress, &|job| job.source_2_size = 32)),
        (
            "compress with an AECS without codes",
            Descriptor::compress_fixed(&unused, page, out, &memory.no_codes),
        ),
        (
            "compress without AECS and without header generation",
            set(compress, &|job| {
                job.control &= !flags::READ_AECS;
                (job.source_2, job.source_2_size) = (0, 0);
            }),
        ),
        ("compress with source 2 named and not used", set(compress, &|job| job.control &= !flags::READ_AECS)),
        (
            "compress with a reserved codec flag",
            set(compress, &|job| job.codec_flags |= compress_flags::RESERVED),
        ),
        ("compress with a reserved field", set(compress, &|job| job.elements = 1)),
        ("compress with the fence flag", set(compress, &|job| job.control |= flags::FENCE)),
        ("compress with block on fault", compress.blocking_on_fault()),
        ("compress from and to the same place", set(compress, &|job| job.source = job.destination)),
        ("one descriptor with header generation", Descriptor::compress_dynamic(&unused, page, out)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The odd streams fail as their names say, and the emulated device agrees with itself.
    #[test]
    fn the_emulated_device_agrees_with_itself() {
        for generation in [1, 2] {
            let spec: EmulateSpec = format!("mode=shared,generation={generation}").parse().unwrap();
            let machine = Machine::new(&spec).unwrap();
            let portal = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
            let mut session = Session::new(Box::new(portal), 128);
            let probes = ask(&mut session, generation).unwrap();
            assert!(probes.iter().all(|probe| probe.agrees), "{probes:#?}");
            let of = |question: &str| {
                let probe = probes.iter().find(|probe| probe.question == question).unwrap();
                (probe.device.status, probe.device.error)
            };
            assert_eq!(of("compress a page"), (0x01, 0));
            assert_eq!(of("inflate a small stream"), (0x01, 0));
            assert_eq!(of("compress into too little room"), (0x0a, 25));
            assert_eq!(of("inflate into too little room"), (0x0b, 0));
            assert_eq!(of("inflate block type 3"), (0x0a, 13));
            assert_eq!(of("inflate stored lengths that do not match"), (0x0a, 14));
            assert_eq!(of("inflate a stream without end of block"), (0x0a, 15));
            assert_eq!(of("inflate a distance before the start"), (0x0a, 18));
            assert_eq!(of("inflate a distance of 4097"), (0x0a, 17));
            assert_eq!(of("compress with an AECS address that is not aligned"), (0x1c, 0));
            assert_eq!(of("compress with an AECS without codes"), (0x0a, 30));
            assert_eq!(of("one descriptor with header generation").0, if generation == 2 { 1 } else { 0x30 });
        }
    }
}
