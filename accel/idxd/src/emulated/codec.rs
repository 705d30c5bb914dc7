//! An engine's work: one job, start to end.

use super::validate::{has_valid_codes, header, validate, Rules};
use crate::aecs::{self, decoder_state, CompressAecs, DecompressAecs, Histogram, WINDOW};
use crate::deflate::bits::{Bits, Kept, KEPT_WORDS};
use crate::deflate::encode::{is_fixed, BitWriter, Counter, Encoder, Tables, FIXED_TABLES};
use crate::deflate::inflate::{Inflater, Output, State, Stop, StopAt};
use crate::deflate::matcher::{Effort, Matcher, Sink};
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
    compress_aecs: Box<CompressAecs>,
    decompress_aecs: Box<DecompressAecs>,
    /// Kept input from the job's AECS.
    kept_before: Box<Kept>,
    /// Kept input for the AECS that the job writes.
    kept: Box<Kept>,
    history: Box<[u8; WINDOW]>,
    scratch: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Sums {
    crc: u32,
    xor: u16,
    is_castagnoli: bool,
}

impl Sums {
    fn new(job: &Descriptor, crc: u32, xor: u32) -> Self {
        Sums { crc, xor: xor as u16, is_castagnoli: job.flags() & flags::CRC_RFC3720 != 0 }
    }

    fn add(&mut self, data: &[u8]) {
        self.crc = if self.is_castagnoli {
            checksum::crc32c(self.crc, data)
        } else {
            checksum::crc32(self.crc, data)
        };
        self.xor = checksum::xor16(self.xor, data);
    }

    fn record(self, status: Status) -> Record {
        Record { crc: self.crc, xor: self.xor, ..Record::of(status) }
    }
}

fn failed(error: ErrorCode) -> Record {
    Record { error, ..Record::of(Status::ANALYTICS_ERROR) }
}

/// The AECS image that a job reads, and the one it writes.
fn images(job: &Descriptor) -> (u64, u64) {
    let (first, second) = (job.source_2, job.source_2 + u64::from(job.source_2_size));
    if job.flags() & flags::AECS_TOGGLE == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

impl Codec {
    pub fn new() -> Self {
        Codec {
            matcher: Matcher::new(),
            tables: Box::new(Tables::EMPTY),
            histogram: Box::new(Histogram::ZERO),
            inflater: Inflater::new(),
            compress_aecs: Box::new(CompressAecs::ZERO),
            decompress_aecs: Box::new(DecompressAecs::start()),
            kept_before: Box::new(Kept::EMPTY),
            kept: Box::new(Kept::EMPTY),
            history: Box::new([0; WINDOW]),
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
        let (read, write) = images(job);
        let writes = job.flags() & flags::WRITE_AECS != 0;
        if job.flags() & flags::READ_AECS != 0 {
            // SAFETY: the submitter promises, and `validate` checks, a readable, aligned AECS of
            // its size.
            (*self.compress_aecs).clone_from(unsafe { &*(read as *const CompressAecs) });
        } else {
            *self.compress_aecs = CompressAecs::ZERO;
        }
        if self.compress_aecs.accumulator_bits > aecs::OUTPUT_ACCUMULATOR_BITS {
            return failed(ErrorCode::INVALID_AECS);
        }
        let mut sums = Sums::new(job, self.compress_aecs.crc, self.compress_aecs.xor);
        sums.add(data);

        let mut record = Record { bytes_completed: job.source_size, ..sums.record(Status::SUCCESS) };
        let header = header(job);
        let mut with_tables = false;
        if job.codec_flags & compress_flags::STATISTICS != 0 {
            self.count(job, data);
            // SAFETY: the destination holds at least a histogram (`validate`) and is ours to write.
            unsafe { (job.destination as *mut Histogram).write_unaligned((*self.histogram).clone()) };
            record.output_size = aecs::HISTOGRAM_SIZE as u32;
        } else if header >= compress_flags::HEADER_TWO_PASS_BARE {
            self.count(job, data);
            if let Err(error) = self.make_tables(header) {
                return failed(error);
            }
            with_tables = true;
        } else {
            // SAFETY: the destination is writable for its size, and only this job uses it until it
            // completes.
            let out = unsafe {
                std::slice::from_raw_parts_mut(job.destination as *mut u8, job.destination_size as usize)
            };
            match self.deflate(job, data, out) {
                Ok((size, bits)) => (record.output_size, record.output_bits) = (size, bits),
                Err(error) => {
                    let output_size = assumptions::OUTPUT_SIZE_AFTER_COMPRESS_OVERFLOW;
                    return Record { output_size, ..failed(error) };
                }
            }
        }
        if writes {
            self.compress_aecs.crc = record.crc;
            self.compress_aecs.xor = u32::from(record.xor);
            // Without tables only the bytes before them are written.
            let len = if with_tables { aecs::COMPRESS_SIZE } else { 288 };
            let from: *const CompressAecs = &*self.compress_aecs;
            // SAFETY: a written source 2 is two images of at least an AECS each, by the submitter's
            // promise and the checks of `validate`; the copy's source is our own.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), write as *mut u8, len) };
        }
        record
    }

    fn count(&mut self, job: &Descriptor, data: &[u8]) {
        *self.histogram = Histogram::ZERO;
        let mut counter = Counter(&mut self.histogram);
        if job.codec_flags & compress_flags::ALL_LITERALS != 0 {
            counter.literals(data, 0, data.len());
        } else {
            self.matcher.search(data, Effort::THOROUGH, &mut counter);
        }
        if job.codec_flags & compress_flags::END_MASK != 0 {
            self.histogram.literals[dynamic::EOB] += 1;
        }
    }

    fn make_tables(&mut self, header: u16) -> Result<(), ErrorCode> {
        if header == compress_flags::HEADER_TWO_PASS_BARE {
            let (mut literals, mut distances) = ([0; aecs::LITERALS], [0; aecs::DISTANCES]);
            dynamic::write_codes(&mut self.compress_aecs, &self.histogram, &mut literals, &mut distances);
            return Ok(());
        }
        if self.compress_aecs.accumulator_bits + dynamic::HEADER_BITS_MAX > aecs::OUTPUT_ACCUMULATOR_BITS {
            return Err(ErrorCode::INVALID_AECS);
        }
        let is_final =
            matches!(header, compress_flags::HEADER_TWO_PASS_FINAL | compress_flags::HEADER_ONE_PASS_FINAL);
        dynamic::write_aecs(&mut self.compress_aecs, &self.histogram, is_final);
        Ok(())
    }

    /// Writes compressed data. Returns its size, and the valid bits of its last byte.
    fn deflate(&mut self, job: &Descriptor, data: &[u8], out: &mut [u8]) -> Result<(u32, u8), ErrorCode> {
        let header = header(job);
        if header != 0 {
            self.count(job, data);
            self.make_tables(header)?;
        }
        let fixed = header == 0 && is_fixed(&self.compress_aecs);
        if !fixed {
            if !has_valid_codes(&self.compress_aecs) {
                return Err(ErrorCode::INVALID_AECS);
            }
            self.tables.load(&self.compress_aecs);
        }

        let mut writer = BitWriter::new(out);
        writer.put_bits_of(&self.compress_aecs.accumulator, self.compress_aecs.accumulator_bits);
        let (tables, effort) =
            if fixed { (&FIXED_TABLES, Effort::QUICK) } else { (&*self.tables, Effort::THOROUGH) };
        let mut encoder = Encoder { writer: &mut writer, tables, missing: false };
        if job.codec_flags & compress_flags::ALL_LITERALS != 0 {
            encoder.literals(data, 0, data.len());
        } else {
            self.matcher.search(data, effort, &mut encoder);
        }
        if job.codec_flags & compress_flags::END_MASK != 0 {
            encoder.end_of_block();
        }
        if encoder.missing {
            return Err(ErrorCode::MISSING_CODE);
        }
        match job.codec_flags & compress_flags::END_MASK {
            compress_flags::END_EOB_STORED => writer.put_empty_stored_block(false),
            compress_flags::END_EOB_STORED_FINAL => writer.put_empty_stored_block(true),
            _ => {}
        }
        let mut bits = 0;
        if job.codec_flags & compress_flags::FLUSH_OUTPUT != 0 {
            bits = writer.finish() as u8;
        }
        if writer.has_overflowed() {
            return Err(ErrorCode::OUTPUT_OVERFLOW);
        }
        let (rest, rest_bits) = writer.rest();
        self.compress_aecs.accumulator.fill(0);
        self.compress_aecs.accumulator[0] = rest;
        self.compress_aecs.accumulator_bits = rest_bits;
        Ok((writer.len() as u32, bits))
    }

    /// # Safety
    /// As for [`Codec::execute`]; the job is valid.
    unsafe fn decompress(&mut self, job: &Descriptor, window: usize) -> Record {
        // SAFETY: the submitter promises that the source is readable for its size and unchanged
        // during the job.
        let data = unsafe { std::slice::from_raw_parts(job.source as *const u8, job.source_size as usize) };
        let (read, write) = images(job);
        let given = job.codec_flags;
        let aecs_size = (job.source_2_size as usize).min(aecs::DECOMPRESS_SIZE);
        let mut history = 0;
        let mut sums = Sums::new(job, 0, 0);
        let reads = job.flags() & flags::READ_AECS != 0;
        if reads {
            *self.decompress_aecs = DecompressAecs::start();
            let to: *mut DecompressAecs = &mut *self.decompress_aecs;
            // SAFETY: the submitter promises `aecs_size` readable bytes, and they fit into ours;
            // any bytes make a DecompressAecs.
            unsafe { std::ptr::copy_nonoverlapping(read as *const u8, to.cast::<u8>(), aecs_size) };
            match self.load_aecs(aecs_size) {
                Ok(len) => history = len,
                Err(error) => return failed(error),
            }
            sums = Sums::new(job, self.decompress_aecs.crc, self.decompress_aecs.xor);
        } else {
            self.inflater.reset();
        }

        let stop_at = match given & (decompress_flags::STOP_ON_EOB | decompress_flags::SELECT_FINAL_EOB) {
            0 | decompress_flags::SELECT_FINAL_EOB => None,
            decompress_flags::STOP_ON_EOB => Some(StopAt::AnyBlock),
            _ => Some(StopAt::FinalBlock),
        };
        let mut ignored = u32::from(given & decompress_flags::IGNORE_END_BITS_MASK) >> 6;
        if given & decompress_flags::IGNORE_END_BITS_HIGH != 0 {
            ignored += 8;
        }
        // Destructured, so that the borrows of kept input and history do not hold the rest.
        let Codec { inflater, scratch, kept_before, kept, history: history_buffer, decompress_aecs, .. } =
            self;
        let mut bits = Bits::new(reads.then_some(&**kept_before), data, ignored);
        let before = &history_buffer[..history];
        let suppressed = given & decompress_flags::SUPPRESS_OUTPUT != 0;
        let (stop, produced);
        if suppressed {
            let mut output = Output { buffer: scratch, len: 0, history: before, window };
            let mut from = 0;
            stop = loop {
                let stop = inflater.run(&mut bits, &mut output, stop_at);
                sums.add(&output.buffer[from..output.len]);
                if stop != Stop::Output {
                    break stop;
                }
                output.buffer.copy_within(output.len - window..output.len, 0);
                (from, output.len) = (window, window);
            };
            produced = output.len;
        } else {
            // SAFETY: the destination is writable for its size, and only this job uses it until it
            // completes.
            let buffer = unsafe {
                std::slice::from_raw_parts_mut(job.destination as *mut u8, job.destination_size as usize)
            };
            let mut output = Output { buffer, len: 0, history: before, window };
            stop = inflater.run(&mut bits, &mut output, stop_at);
            produced = output.len;
            sums.add(&output.buffer[..produced]);
        }

        let writes = match job.flags() & flags::WRITE_SOURCE_2_MASK {
            flags::WRITE_AECS => true,
            flags::WRITE_AECS_ON_OVERFLOW => stop == Stop::Output,
            _ => false,
        };
        let mut record = sums.record(Status::SUCCESS);
        record.output_size =
            if suppressed { assumptions::OUTPUT_SIZE_WHEN_SUPPRESSED } else { produced as u32 };
        let (used, mut rest) = bits.give_back();
        record.bytes_completed = used as u32;
        match stop {
            Stop::End => {}
            Stop::Error(error) => return Record { bytes_completed: used as u32, ..failed(error) },
            Stop::Output if writes && produced == 0 && !reads && used == 0 => {
                return failed(ErrorCode::NO_PROGRESS)
            }
            Stop::Output => record.status = Status::OUTPUT_OVERFLOW,
            Stop::Input { in_header } => {
                let checks = given & decompress_flags::CHECK_EOB != 0;
                if checks && !ended_by_block(inflater.state, &bits, given) {
                    let code = if in_header { assumptions::TRUNCATED_HEADER } else { ErrorCode::NO_EOB };
                    return failed(code);
                }
                if in_header && (!writes || bits.left() > KEPT_WORDS * 64) {
                    return failed(assumptions::TRUNCATED_HEADER);
                }
                rest = bits.left();
                record.bytes_completed = job.source_size;
            }
        }
        if writes {
            if stop == Stop::End {
                rest = 0;
            }
            bits.keep(kept, rest);
            // SAFETY: the destination, or our scratch, holds the output; see above.
            let output = unsafe {
                let at = if suppressed { scratch.as_ptr() } else { job.destination as *const u8 };
                std::slice::from_raw_parts(at, produced)
            };
            decompress_aecs.crc = record.crc;
            decompress_aecs.xor = u32::from(record.xor);
            save_aecs(decompress_aecs, inflater, kept, before, output);
            let from: *const DecompressAecs = &**decompress_aecs;
            // SAFETY: a written source 2 is two images of at least `aecs_size` each, by the
            // submitter's promise; the copy's source is our own.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), write as *mut u8, aecs_size) };
        }
        record
    }

    /// Takes state, kept input and history from [`Codec::decompress_aecs`]. Returns the bytes of
    /// history.
    fn load_aecs(&mut self, size: usize) -> Result<usize, ErrorCode> {
        let aecs = &*self.decompress_aecs;
        let served = aecs.filter == [0; 2] && aecs.drop_bytes == 0 && aecs.drop_bits == 0;
        let served = served && aecs.output_accumulator_bits <= 1 && aecs.format <= 1;
        if !served || aecs.input_accumulator_bits.iter().any(|&bits| bits > 64) {
            return Err(ErrorCode::INVALID_AECS);
        }
        for (word, halves) in self.kept_before.words.iter_mut().zip(&aecs.input_accumulator) {
            *word = u64::from(halves[0]) | u64::from(halves[1]) << 32;
        }
        self.kept_before.valid = aecs.input_accumulator_bits;
        let nibble = |at: usize| aecs.tables[at / 2] >> (at % 2 * 4) & 15;
        for (at, length) in self.inflater.lengths.literals.iter_mut().enumerate() {
            *length = nibble(at);
        }
        for (at, length) in self.inflater.lengths.distances.iter_mut().enumerate() {
            *length = nibble(aecs::LITERALS + at);
        }
        let [is_fixed, after_block] = [aecs.tables[158] != 0, aecs.tables[159] != 0];
        let stored_left = u16::from_le_bytes([aecs.tables[160], aecs.tables[161]]);
        self.inflater.restore(aecs.state, is_fixed, stored_left, after_block)?;

        if size < 1256 + WINDOW {
            return Ok(0);
        }
        let offset = usize::from(aecs.history_offset & 0x7fff);
        if offset > WINDOW {
            return Err(ErrorCode::INVALID_AECS);
        }
        let wrapped = if aecs.history_offset >> 15 != 0 { WINDOW - offset } else { 0 };
        self.history[..wrapped].copy_from_slice(&aecs.history[offset..offset + wrapped]);
        self.history[wrapped..wrapped + offset].copy_from_slice(&aecs.history[..offset]);
        Ok(wrapped + offset)
    }
}

/// Whether input that ended inside an apparent header ended well: just behind a block's end, with
/// padding alone.
fn ended_by_block(state: State, bits: &Bits<'_>, given: u16) -> bool {
    given & decompress_flags::SELECT_FINAL_EOB == 0
        && state == (State::Header { after_block: true })
        && bits.left() < 8
}

fn save_aecs(aecs: &mut DecompressAecs, inflater: &Inflater, kept: &Kept, before: &[u8], output: &[u8]) {
    for (halves, word) in aecs.input_accumulator.iter_mut().zip(&kept.words) {
        *halves = [*word as u32, (*word >> 32) as u32];
    }
    aecs.input_accumulator_bits = kept.valid;
    aecs.tables.fill(0);
    let lengths = &inflater.lengths;
    for (at, &length) in lengths.literals.iter().chain(&lengths.distances).enumerate() {
        aecs.tables[at / 2] |= length << (at % 2 * 4);
    }
    aecs.state = match inflater.state {
        State::Header { after_block } => {
            aecs.tables[159] = u8::from(after_block);
            decoder_state::HEADER
        }
        State::Tokens { is_final, is_fixed } => {
            aecs.tables[158] = u8::from(is_fixed);
            if is_final {
                decoder_state::TOKEN_FINAL
            } else {
                decoder_state::TOKEN
            }
        }
        State::Stored { is_final, left } => {
            aecs.tables[160..162].copy_from_slice(&left.to_le_bytes());
            if is_final {
                decoder_state::STORED_FINAL
            } else {
                decoder_state::STORED
            }
        }
        State::Ended => decoder_state::ENDED,
    };
    let fresh = output.len().min(WINDOW);
    let old = before.len().min(WINDOW - fresh);
    aecs.history[..old].copy_from_slice(&before[before.len() - old..]);
    aecs.history[old..old + fresh].copy_from_slice(&output[output.len() - fresh..]);
    let len = old + fresh;
    aecs.history_offset = if len == WINDOW { 1 << 15 } else { len as u16 };
}
