//! A device's checks before it starts a job.

use crate::aecs::{self, CompressAecs};
use crate::{assumptions, compress_flags, decompress_flags, flags, Descriptor, Opcode, Record, Status};

/// The limits of a device's generation and configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub generation: u32,
    pub max_transfer: u32,
    /// Longest distance that decompression accepts.
    pub window: usize,
}

/// Operation flags of the descriptors that drivers build. A device has more.
const FLAGS_OF_EVERY_OPERATION: u32 = flags::COMPLETION_VALID | flags::REQUEST_COMPLETION;
const FLAGS_OF_CODECS: u32 = FLAGS_OF_EVERY_OPERATION | flags::BLOCK_ON_FAULT | flags::CACHE_CONTROL;

/// Refuses invalid jobs, and those that are not served, in the order opcode, flags, reserved
/// fields, sizes, alignment, codec flags.
pub(crate) fn validate(job: &Descriptor, rules: Rules) -> Result<(), Record> {
    match job.opcode() {
        Opcode::NOOP | Opcode::DRAIN => {
            operation_flags(job, FLAGS_OF_EVERY_OPERATION)?;
            common_fields(job)?;
            let addresses = job.source | job.destination;
            let sizes =
                job.source_size | job.destination_size | u32::from(job.codec_flags) | job.codec_flags_2;
            refuse(addresses != 0 || sizes != 0, Status::NONZERO_RESERVED)?;
            source_2(job)
        }
        Opcode::COMPRESS => {
            operation_flags(job, FLAGS_OF_CODECS | flags::READ_AECS | flags::WRITE_AECS)?;
            common_fields(job)?;
            refuse(job.codec_flags_2 & !compress_flags::WRITE_TABLES != 0, Status::NONZERO_RESERVED)?;
            let has_output = job.codec_flags != compress_flags::TWO_PASS;
            sizes(job, rules, has_output)?;
            source_2(job)?;
            compress(job, rules)?;
            overlap(job, has_output)
        }
        Opcode::DECOMPRESS => {
            operation_flags(job, FLAGS_OF_CODECS)?;
            common_fields(job)?;
            refuse(job.codec_flags_2 != 0, Status::INVALID_FILTER_FLAGS)?;
            let has_output = job.codec_flags & decompress_flags::SUPPRESS_OUTPUT == 0;
            sizes(job, rules, has_output)?;
            source_2(job)?;
            let options = decompress_flags::SELECT_FINAL_EOB | decompress_flags::SUPPRESS_OUTPUT;
            let is_served = job.codec_flags & !options == decompress_flags::WHOLE_STREAM;
            refuse(!is_served, Status::INVALID_CODEC_FLAGS)?;
            overlap(job, has_output)
        }
        _ => Err(Record::of(Status::UNSUPPORTED_OPCODE)),
    }
}

fn refuse(when: bool, status: Status) -> Result<(), Record> {
    if when {
        Err(Record::of(status))
    } else {
        Ok(())
    }
}

fn operation_flags(job: &Descriptor, allowed: u32) -> Result<(), Record> {
    let given = job.flags();
    let mut invalid = given & !allowed;
    // A record can only be requested at an address.
    if given & flags::COMPLETION_VALID == 0 {
        invalid |= given & flags::REQUEST_COMPLETION;
    }
    if invalid != 0 {
        return Err(Record { invalid_flags: invalid, ..Record::of(Status::INVALID_FLAGS) });
    }
    Ok(())
}

fn common_fields(job: &Descriptor) -> Result<(), Record> {
    refuse(job.pasid >> 31 != 0, Status::PRIVILEGE)?;
    refuse(job.pasid >> 20 != 0, Status::NONZERO_RESERVED)?;
    refuse(job.interrupt_handle != 0 || job.elements != 0, Status::NONZERO_RESERVED)
}

fn sizes(job: &Descriptor, rules: Rules, has_output: bool) -> Result<(), Record> {
    let bad = |size: u32| size == 0 || size > rules.max_transfer;
    refuse(bad(job.source_size) || (has_output && bad(job.destination_size)), Status::INVALID_SIZE)?;
    let null = job.source == 0 || (has_output && job.destination == 0);
    refuse(null, assumptions::NULL_ADDRESS)
}

fn source_2(job: &Descriptor) -> Result<(), Record> {
    if job.flags() & (flags::READ_AECS | flags::WRITE_AECS) == 0 {
        return refuse(job.source_2 != 0 || job.source_2_size != 0, assumptions::UNUSED_SOURCE_2);
    }
    let is_long_enough = (aecs::COMPRESS_SIZE as u32..=1 << 16).contains(&job.source_2_size);
    refuse(!is_long_enough, assumptions::AECS_TOO_SHORT)?;
    refuse(
        !job.source_2.is_multiple_of(32) || !job.source_2_size.is_multiple_of(32),
        Status::MISALIGNED_ADDRESS,
    )?;
    refuse(job.source_2 == 0, assumptions::NULL_ADDRESS)
}

/// Serves the four jobs that [`Descriptor`] builds.
fn compress(job: &Descriptor, rules: Rules) -> Result<(), Record> {
    use compress_flags as f;
    let reads = job.flags() & flags::READ_AECS != 0;
    let writes = job.flags() & flags::WRITE_AECS != 0;
    let writes_tables = job.codec_flags_2 & f::WRITE_TABLES != 0;
    if job.codec_flags == f::TWO_PASS {
        refuse(rules.generation < 2, Status::INVALID_CODEC_FLAGS)?;
        // The pass writes its tables only to the AECS.
        return refuse(!writes || !writes_tables, Status::INVALID_FLAGS);
    }
    refuse(writes_tables, Status::INVALID_CODEC_FLAGS)?;
    match job.codec_flags {
        f::STATISTICS => refuse(job.destination_size < aecs::HISTOGRAM_SIZE as u32, Status::INVALID_SIZE)?,
        f::WITH_CODES => refuse(!reads, assumptions::COMPRESS_WITHOUT_CODES)?,
        f::ONE_PASS if rules.generation >= 2 => {
            refuse(job.source_size > assumptions::ONE_PASS_INPUT_MAX, assumptions::ONE_PASS_TOO_LONG)?;
        }
        _ => refuse(true, Status::INVALID_CODEC_FLAGS)?,
    }
    refuse(writes, Status::INVALID_FLAGS)
}

fn overlap(job: &Descriptor, has_output: bool) -> Result<(), Record> {
    let source = job.source..job.source.saturating_add(u64::from(job.source_size));
    let destination = job.destination..job.destination.saturating_add(u64::from(job.destination_size));
    let overlap = source.start < destination.end && destination.start < source.end;
    refuse(has_output && overlap && assumptions::OVERLAP_IS_REFUSED, Status::OVERLAPPING_BUFFERS)
}

/// Whether every entry of the code tables is valid.
pub(crate) fn has_valid_codes(aecs: &CompressAecs) -> bool {
    aecs.literals.iter().chain(&aecs.distances).all(|&entry| {
        let (code, length) = (entry & 0x7fff, entry >> 15);
        length <= 15 && code >> length == 0
    })
}
