//! An engine's work: one job, start to end.

use super::validate::{has_valid_codes, validate, Rules};
use crate::aecs::{self, CompressAecs, Histogram};
use crate::deflate::bits::Bits;
use crate::deflate::encode::{is_fixed, BitWriter, Counter, Encoder, Tables, FIXED_TABLES};
use crate::deflate::inflate::{Inflater, Output, Stop};
use crate::deflate::matcher::{Effort, Matcher};
use crate::deflate::{checksum, dynamic};
use crate::{
    assumptions, compress_flags, decompress_flags, flags, Descriptor, ErrorCode, Opcode, Record, Status,
};

/// Scratch bytes of a decompression without output: large, so that sliding its window costs little.
const SCRATCH: usize = 64 * 1024;

/// An engine's working memory. Allocated once; jobs allocate nothing.
pub(crate) struct Codec {
    matcher: Matcher,
    tables: Box<Tables>,
    histogram: Box<Histogram>,
    inflater: Inflater,
    aecs: Box<CompressAecs>,
    scratch: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Sums {
    crc: u32,
    xor: u16,
}

impl Sums {
    fn add(&mut self, data: &[u8]) {
        self.crc = checksum::crc32(self.crc, data);
        self.xor = checksum::xor16(self.xor, data);
    }

    fn record(self, status: Status) -> Record {
        Record { crc: self.crc, xor: self.xor, ..Record::of(status) }
    }
}

fn failed(error: ErrorCode) -> Record {
    Record { error, ..Record::of(Status::ANALYTICS_ERROR) }
}

impl Codec {
    pub fn new() -> Self {
        Codec {
            matcher: Matcher::new(),
            tables: Box::new(Tables::EMPTY),
            histogram: Box::new(Histogram::ZERO),
            inflater: Inflater::new(),
            aecs: Box::new(CompressAecs::ZERO),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
        }
    }

    /// Executes `job` and returns its completion record.
    ///
    /// # Safety
    /// As for [`crate::Portal::submit`]: the job's buffers are valid for the accesses its fields
    /// announce.
    pub unsafe fn execute(&mut self, job: &Descriptor, rules: Rules) -> Record {
        if let Err(refusal) = validate(job, rules) {
            return refusal;
        }
        match job.opcode() {
            // SAFETY: the caller's promise.
            Opcode::COMPRESS => unsafe { self.compress(job) },
            // SAFETY: the caller's promise.
            Opcode::DECOMPRESS => unsafe { self.decompress(job, rules.window) },
            _ => Record::of(Status::SUCCESS),
        }
    }

    /// # Safety
    /// As for [`Codec::execute`]; the job is valid.
    unsafe fn compress(&mut self, job: &Descriptor) -> Record {
        // SAFETY: the submitter promises that the source is readable for its size and unchanged
        // during the job.
        let data = unsafe { std::slice::from_raw_parts(job.source as *const u8, job.source_size as usize) };
        if job.flags() & flags::READ_AECS != 0 {
            // SAFETY: the submitter promises, and `validate` checks, a readable, aligned AECS of
            // its size.
            (*self.aecs).clone_from(unsafe { &*(job.source_2 as *const CompressAecs) });
        } else {
            *self.aecs = CompressAecs::ZERO;
        }
        if self.aecs.accumulator_bits > aecs::OUTPUT_ACCUMULATOR_BITS {
            return failed(ErrorCode::INVALID_AECS);
        }
        let mut sums = Sums { crc: self.aecs.crc, xor: self.aecs.xor as u16 };
        sums.add(data);

        let mut record = Record { bytes_completed: job.source_size, ..sums.record(Status::SUCCESS) };
        match job.codec_flags {
            compress_flags::STATISTICS => {
                self.count(data);
                // SAFETY: the destination holds at least a histogram (`validate`) and is ours.
                unsafe { (job.destination as *mut Histogram).write_unaligned((*self.histogram).clone()) };
                record.output_size = aecs::HISTOGRAM_SIZE as u32;
            }
            compress_flags::TWO_PASS => {
                if let Err(error) = self.make_tables(data) {
                    return failed(error);
                }
                (self.aecs.crc, self.aecs.xor) = (record.crc, u32::from(record.xor));
                let second = job.source_2 + u64::from(job.source_2_size);
                // SAFETY: a written source 2 is two aligned images of at least an AECS each, by the
                // submitter's promise and the checks of `validate`.
                unsafe { (second as *mut CompressAecs).write((*self.aecs).clone()) };
            }
            flags => {
                // SAFETY: the destination is writable for its size, and only this job uses it until
                // it completes.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(job.destination as *mut u8, job.destination_size as usize)
                };
                match self.deflate(flags == compress_flags::ONE_PASS, data, out) {
                    Ok(size) => record.output_size = size,
                    Err(error) => {
                        let output_size = assumptions::OUTPUT_SIZE_AFTER_COMPRESS_OVERFLOW;
                        return Record { output_size, ..failed(error) };
                    }
                }
            }
        }
        record
    }

    fn count(&mut self, data: &[u8]) {
        *self.histogram = Histogram::ZERO;
        self.matcher.search(data, Effort::THOROUGH, &mut Counter(&mut self.histogram));
    }

    /// Makes codes for `data` and their header into the AECS.
    fn make_tables(&mut self, data: &[u8]) -> Result<(), ErrorCode> {
        self.count(data);
        if self.aecs.accumulator_bits + dynamic::HEADER_BITS_MAX > aecs::OUTPUT_ACCUMULATOR_BITS {
            return Err(ErrorCode::INVALID_AECS);
        }
        dynamic::write_aecs(&mut self.aecs, &self.histogram);
        Ok(())
    }

    /// Writes compressed data, with codes of its own if `makes_codes`. Returns its size.
    fn deflate(&mut self, makes_codes: bool, data: &[u8], out: &mut [u8]) -> Result<u32, ErrorCode> {
        if makes_codes {
            self.make_tables(data)?;
        }
        let fixed = !makes_codes && is_fixed(&self.aecs);
        if !fixed {
            if !has_valid_codes(&self.aecs) {
                return Err(ErrorCode::INVALID_AECS);
            }
            self.tables.load(&self.aecs);
        }

        let mut writer = BitWriter::new(out);
        writer.put_bits_of(&self.aecs.accumulator, self.aecs.accumulator_bits);
        let (tables, effort) =
            if fixed { (&FIXED_TABLES, Effort::QUICK) } else { (&*self.tables, Effort::THOROUGH) };
        let mut encoder = Encoder { writer: &mut writer, tables, missing: false };
        self.matcher.search(data, effort, &mut encoder);
        encoder.end_of_block();
        if encoder.missing {
            return Err(ErrorCode::MISSING_CODE);
        }
        writer.finish();
        if writer.has_overflowed() {
            return Err(ErrorCode::OUTPUT_OVERFLOW);
        }
        Ok(writer.len() as u32)
    }

    /// # Safety
    /// As for [`Codec::execute`]; the job is valid.
    unsafe fn decompress(&mut self, job: &Descriptor, window: usize) -> Record {
        // SAFETY: the submitter promises that the source is readable for its size and unchanged
        // during the job.
        let data = unsafe { std::slice::from_raw_parts(job.source as *const u8, job.source_size as usize) };
        let suppressed = job.codec_flags & decompress_flags::SUPPRESS_OUTPUT != 0;
        let buffer = if suppressed {
            &mut *self.scratch
        } else {
            // SAFETY: the destination is writable for its size, and only this job uses it until it
            // completes.
            unsafe {
                std::slice::from_raw_parts_mut(job.destination as *mut u8, job.destination_size as usize)
            }
        };
        let at_any_block = job.codec_flags & decompress_flags::SELECT_FINAL_EOB == 0;
        let (mut bits, mut sums) = (Bits::new(data), Sums { crc: 0, xor: 0 });
        let mut output = Output { buffer, len: 0, window };
        let mut from = 0;
        self.inflater.reset();
        let stop = loop {
            let stop = self.inflater.run(&mut bits, &mut output, at_any_block);
            sums.add(&output.buffer[from..output.len]);
            if !suppressed || stop != Ok(Stop::Output) {
                break stop;
            }
            output.buffer.copy_within(output.len - window..output.len, 0);
            (from, output.len) = (window, window);
        };
        let bytes_completed = bits.used() as u32;
        let status = match stop {
            Ok(Stop::End) => Status::SUCCESS,
            Ok(Stop::Output) => Status::OUTPUT_OVERFLOW,
            Err(error) => return Record { bytes_completed, ..failed(error) },
        };
        let output_size =
            if suppressed { assumptions::OUTPUT_SIZE_WHEN_SUPPRESSED } else { output.len as u32 };
        Record { bytes_completed, output_size, ..sums.record(status) }
    }
}
