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

/// Refuses invalid jobs, in the order opcode, flags, reserved fields, sizes, alignment, codec
/// flags.
pub(crate) fn validate(job: &Descriptor, rules: Rules) -> Result<(), Record> {
    match job.opcode() {
        Opcode::NOOP | Opcode::DRAIN => {
            operation_flags(job, assumptions::FLAGS_OF_EVERY_OPERATION)?;
            common_fields(job)?;
            let unused = job.source
                | job.destination
                | u64::from(
                    job.source_size | job.destination_size | u32::from(job.codec_flags) | job.codec_flags_2,
                );
            refuse(unused != 0, Status::NONZERO_RESERVED)?;
            refuse(job.elements != 0, Status::NONZERO_RESERVED)?;
            source_2(job, 0)
        }
        Opcode::COMPRESS => {
            operation_flags(job, assumptions::FLAGS_OF_EVERY_OPERATION | assumptions::FLAGS_OF_CODECS)?;
            common_fields(job)?;
            refuse(
                job.elements != 0 || job.codec_flags_2 & !compress_flags::WRITE_TABLES != 0,
                Status::NONZERO_RESERVED,
            )?;
            sizes(job, rules, header(job) < compress_flags::HEADER_TWO_PASS_BARE)?;
            source_2(job, aecs::COMPRESS_SIZE as u32)?;
            compress(job, rules)?;
            overlap(job)
        }
        Opcode::DECOMPRESS => {
            operation_flags(job, assumptions::FLAGS_OF_EVERY_OPERATION | assumptions::FLAGS_OF_CODECS)?;
            common_fields(job)?;
            refuse(job.codec_flags_2 != 0, Status::INVALID_FILTER_FLAGS)?;
            refuse(job.elements != 0, Status::NONZERO_RESERVED)?;
            let has_output = job.codec_flags & decompress_flags::SUPPRESS_OUTPUT == 0;
            sizes(job, rules, has_output)?;
            source_2(job, aecs::DECOMPRESS_SIZE_BARE as u32)?;
            decompress(job, rules)?;
            if has_output {
                overlap(job)?;
            }
            Ok(())
        }
        _ => Err(Record::of(Status::UNSUPPORTED_OPCODE)),
    }
}

pub(crate) fn header(job: &Descriptor) -> u16 {
    job.codec_flags & compress_flags::HEADER_MASK
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
    for field in [flags::READ_SOURCE_2_MASK, flags::WRITE_SOURCE_2_MASK] {
        if given & field == field {
            invalid |= field;
        }
    }
    invalid |= given & flags::READ_FILTER_INPUT;
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
    let wants_interrupt = job.flags() & flags::REQUEST_INTERRUPT != 0;
    refuse(!wants_interrupt && job.interrupt_handle != 0, Status::NONZERO_RESERVED)?;
    // Only handle 0 exists.
    refuse(wants_interrupt && job.interrupt_handle != 0, Status::BAD_INTERRUPT_HANDLE)
}

fn sizes(job: &Descriptor, rules: Rules, has_output: bool) -> Result<(), Record> {
    let bad = |size: u32| size == 0 || size > rules.max_transfer;
    refuse(bad(job.source_size) || (has_output && bad(job.destination_size)), Status::INVALID_SIZE)?;
    let null = job.source == 0 || (has_output && job.destination == 0);
    refuse(null, assumptions::NULL_ADDRESS)
}

fn source_2(job: &Descriptor, least: u32) -> Result<(), Record> {
    let used = job.flags() & (flags::READ_AECS | flags::WRITE_SOURCE_2_MASK) != 0;
    if !used {
        return refuse(job.source_2 != 0 || job.source_2_size != 0, assumptions::UNUSED_SOURCE_2);
    }
    refuse(job.source_2_size < least || job.source_2_size > 1 << 16, assumptions::AECS_TOO_SHORT)?;
    refuse(
        !job.source_2.is_multiple_of(32) || !job.source_2_size.is_multiple_of(32),
        Status::MISALIGNED_ADDRESS,
    )?;
    refuse(job.source_2 == 0, assumptions::NULL_ADDRESS)
}

fn compress(job: &Descriptor, rules: Rules) -> Result<(), Record> {
    use compress_flags as f;
    let given = job.codec_flags;
    // Big-endian output, mini-blocks and dictionaries are not served.
    let unserved = f::RESERVED | f::BIG_ENDIAN_16 | f::MINI_BLOCK_MASK | f::LOAD_DICTIONARY_MASK;
    refuse(given & unserved != 0, Status::INVALID_CODEC_FLAGS)?;
    let reads = job.flags() & flags::READ_AECS != 0;
    let writes = job.flags() & flags::WRITE_AECS != 0;
    match header(job) {
        0 => {
            refuse(job.codec_flags_2 != 0, Status::INVALID_CODEC_FLAGS)?;
            if given & f::STATISTICS != 0 {
                return refuse(job.destination_size < aecs::HISTOGRAM_SIZE as u32, Status::INVALID_SIZE);
            }
            refuse(!reads, assumptions::COMPRESS_WITHOUT_CODES)
        }
        _ if rules.generation < 2 => Err(Record::of(Status::INVALID_CODEC_FLAGS)),
        f::HEADER_ONE_PASS | f::HEADER_ONE_PASS_FINAL => {
            refuse(given & f::STATISTICS != 0, Status::INVALID_CODEC_FLAGS)?;
            refuse(job.source_size > assumptions::ONE_PASS_INPUT_MAX, assumptions::ONE_PASS_TOO_LONG)
        }
        f::HEADER_TWO_PASS_BARE | f::HEADER_TWO_PASS | f::HEADER_TWO_PASS_FINAL => {
            refuse(given & f::STATISTICS != 0, Status::INVALID_CODEC_FLAGS)?;
            // The pass writes its tables only to the AECS.
            refuse(!writes || job.codec_flags_2 & f::WRITE_TABLES == 0, Status::INVALID_FLAGS)
        }
        _ => Err(Record::of(Status::INVALID_CODEC_FLAGS)),
    }
}

fn decompress(job: &Descriptor, rules: Rules) -> Result<(), Record> {
    use decompress_flags as f;
    let given = job.codec_flags;
    let mut unserved = f::RESERVED | f::BIG_ENDIAN_16 | f::MINI_BLOCK_MASK;
    if rules.generation < 2 {
        unserved |= f::IGNORE_END_BITS_HIGH;
    }
    refuse(given & unserved != 0, Status::INVALID_CODEC_FLAGS)?;
    refuse(given & f::ENABLE == 0, assumptions::DECOMPRESS_NOT_ENABLED)
}

fn overlap(job: &Descriptor) -> Result<(), Record> {
    let source = job.source..job.source.saturating_add(u64::from(job.source_size));
    let destination = job.destination..job.destination.saturating_add(u64::from(job.destination_size));
    let overlap = source.start < destination.end && destination.start < source.end;
    refuse(overlap && assumptions::OVERLAP_IS_REFUSED, Status::OVERLAPPING_BUFFERS)
}

/// Whether every entry of the code tables is valid.
pub(crate) fn has_valid_codes(aecs: &CompressAecs) -> bool {
    aecs.literals.iter().chain(&aecs.distances).all(|&entry| {
        let (code, length) = (entry & 0x7fff, entry >> 15);
        length <= 15 && code >> length == 0
    })
}
