//! Files of pages, plain and compressed, to try compressors on one's own memory.
//!
//! A plain file is a sequence of pages. A compressed file is a sequence of records, one per unit: a
//! little-endian `u32` length and that many bytes; a record as long as its unit holds the unit
//! uncompressed. A file's last unit may be shorter than the others; only its decompressed length
//! shows this, so reading tries the whole unit first and then each shorter length.

use std::io::{self, Read, Write};

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Page, UnitError, FORMS_MAX,
    MAX_BATCH, PAGE_SIZE,
};

/// A file could not be compressed or decompressed.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The input is not whole pages.
    #[error("the input ends in the middle of a page, after {0} whole ones")]
    PartPage(u64),
    /// The input ends in the middle of a record.
    #[error("record {0} is cut short")]
    PartRecord(u64),
    /// A record is longer than a unit.
    #[error("record {record} has {len} bytes, more than a unit of {unit_size}")]
    LongRecord {
        /// The record's number.
        record: u64,
        /// Its length.
        len: usize,
        /// Bytes per unit.
        unit_size: usize,
    },
    /// A record does not decompress: damaged, or of another compressor or unit size.
    #[error("record {0} does not decompress with this compressor and unit size")]
    Damaged(u64),
    /// The compressor failed on a unit.
    #[error("the compressor failed on unit {0}")]
    Failed(u64),
    /// The compressor could not be set up.
    #[error(transparent)]
    Context(#[from] ContextError),
}

/// Figures of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pages.
    pub pages: u64,
    /// Units, one record each.
    pub units: u64,
    /// Units kept uncompressed.
    pub raw_units: u64,
    /// Bytes of the compressed file's records, without their lengths.
    pub object_bytes: u64,
    /// Pages of units that shrank, by the compressor's [`forms`](Algorithm::forms).
    pub forms: [u32; FORMS_MAX],
}

impl Totals {
    fn add(&mut self, algorithm: &dyn Algorithm, object: &[u8], pages: usize) {
        algorithm.count_forms(Object::whole(object), pages, &mut self.forms[..algorithm.forms().len()]);
    }
}

/// Reads exactly one buffer, or the rest; returns its length.
fn read_up_to(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Compresses a plain file of pages, batch by batch.
///
/// # Errors
/// [`PagesError`].
pub fn compress(
    algorithm: &dyn Algorithm,
    unit_size: usize,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> Result<Totals, PagesError> {
    let mut context = algorithm.context_for(unit_size)?;
    let mut totals = Totals::default();
    let mut source = vec![0; unit_size * MAX_BATCH];
    let mut rooms = vec![0; unit_size * MAX_BATCH];
    loop {
        let len = read_up_to(input, &mut source)?;
        let (pages, rest) = source[..len].as_chunks::<PAGE_SIZE>();
        if !rest.is_empty() {
            return Err(PagesError::PartPage(totals.pages + pages.len() as u64));
        }
        if pages.is_empty() {
            return Ok(totals);
        }
        let refs: Vec<&Page> = pages.iter().collect();
        let mut outputs: Vec<&mut [u8]> = rooms[..len].chunks_mut(unit_size).collect();
        let mut results = [Err(UnitError::Failed); MAX_BATCH];
        let results = &mut results[..outputs.len()];
        context.compress(&mut CompressRequest { pages: &refs, unit_size, outputs: &mut outputs, results });
        for ((unit, room), result) in
            source[..len].chunks(unit_size).zip(rooms.chunks(unit_size)).zip(results)
        {
            let object = match *result {
                Ok(len) if len > 0 && len < unit.len() => &room[..len],
                Ok(_) | Err(UnitError::NoSpace) => unit,
                Err(UnitError::Failed) => return Err(PagesError::Failed(totals.units)),
            };
            output.write_all(&(object.len() as u32).to_le_bytes())?;
            output.write_all(object)?;
            totals.units += 1;
            match object.len() == unit.len() {
                true => totals.raw_units += 1,
                false => totals.add(algorithm, object, unit.len() / PAGE_SIZE),
            }
            totals.object_bytes += object.len() as u64;
        }
        totals.pages += pages.len() as u64;
    }
}

/// Decompresses [`compress`]'s output, with the same algorithm and unit size.
///
/// # Errors
/// [`PagesError`].
pub fn decompress(
    algorithm: &dyn Algorithm,
    unit_size: usize,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> Result<Totals, PagesError> {
    let mut context = algorithm.context_for(unit_size)?;
    let mut totals = Totals::default();
    let mut object = vec![0; unit_size];
    let mut unit = vec![0; unit_size];
    loop {
        let record = totals.units;
        let mut len = [0; 4];
        match read_up_to(input, &mut len)? {
            0 => return Ok(totals),
            4 => {}
            _ => return Err(PagesError::PartRecord(record)),
        }
        let len = u32::from_le_bytes(len) as usize;
        if len > unit_size {
            return Err(PagesError::LongRecord { record, len, unit_size });
        }
        if read_up_to(input, &mut object[..len])? < len {
            return Err(PagesError::PartRecord(record));
        }
        let bytes = if len == unit_size {
            totals.raw_units += 1;
            &object[..]
        } else {
            let unit_len = decompress_unit(&mut *context, &object[..len], &mut unit)
                .ok_or(PagesError::Damaged(record))?;
            match unit_len {
                0 => {
                    totals.raw_units += 1;
                    &object[..len]
                }
                unit_len => {
                    totals.add(algorithm, &object[..len], unit_len / PAGE_SIZE);
                    &unit[..unit_len]
                }
            }
        };
        output.write_all(bytes)?;
        totals.units += 1;
        totals.object_bytes += len as u64;
        totals.pages += (bytes.len() / PAGE_SIZE) as u64;
    }
}

/// Decompresses a record into the front of `unit`. Returns the length that fits, 0 for a short unit
/// kept uncompressed, `None` if none fits.
fn decompress_unit(context: &mut dyn Context, object: &[u8], unit: &mut [u8]) -> Option<usize> {
    for pages in (1..=unit.len() / PAGE_SIZE).rev() {
        let len = pages * PAGE_SIZE;
        if len == object.len() {
            return Some(0);
        }
        if len < object.len() {
            break;
        }
        let mut results = [Err(UnitError::Failed)];
        context.decompress(&mut DecompressRequest {
            objects: &[Object::whole(object)],
            outputs: &mut [&mut unit[..len]],
            results: &mut results,
        });
        if results[0] == Ok(len) {
            return Some(len);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn corpus(pages: usize) -> Vec<u8> {
        let mut state = 5u64;
        (0..pages * PAGE_SIZE)
            .map(|at| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if at / PAGE_SIZE % 7 == 6 {
                    (state >> 56) as u8
                } else {
                    (state >> 62) as u8 * 3
                }
            })
            .collect()
    }

    #[test]
    fn files_of_any_length_come_back() {
        for name in ["lz4", "zstd:1", "deflate", "none"] {
            let algorithm = crate::registry().find(name).unwrap();
            for unit_size in [PAGE_SIZE, 4 * PAGE_SIZE, 16 * PAGE_SIZE] {
                for pages in [0, 1, 3, 16, 47] {
                    let plain = corpus(pages);
                    let (mut packed, mut back) = (Vec::new(), Vec::new());
                    let totals = compress(&*algorithm, unit_size, &mut &plain[..], &mut packed).unwrap();
                    assert_eq!(totals.pages, pages as u64);
                    assert_eq!(totals.units, plain.len().div_ceil(unit_size) as u64);
                    assert_eq!(packed.len() as u64, totals.object_bytes + 4 * totals.units);
                    let again = decompress(&*algorithm, unit_size, &mut &packed[..], &mut back).unwrap();
                    assert_eq!(again, totals, "{name} {unit_size} {pages}");
                    assert!(back == plain);
                }
            }
        }
    }

    #[test]
    fn damage_is_told_with_the_record() {
        let algorithm = crate::registry().find("lz4").unwrap();
        let plain = corpus(5);
        let mut packed = Vec::new();
        compress(&*algorithm, PAGE_SIZE, &mut &plain[..], &mut packed).unwrap();
        let run = |bytes: &[u8]| {
            decompress(&*algorithm, PAGE_SIZE, &mut &bytes[..], &mut io::sink()).unwrap_err().to_string()
        };
        assert!(run(&packed[..packed.len() - 1]).contains("record 4 is cut short"));
        assert!(run(&packed[..2]).contains("record 0 is cut short"));
        let mut long = packed.clone();
        long[2] = 1;
        assert!(run(&long).contains("record 0 has"));
        assert!(run(&[3, 0, 0, 0, 0xFF, 0xFF, 0xFF]).contains("record 0 does not decompress"));
        let mut sink = Vec::new();
        let part = compress(&*algorithm, PAGE_SIZE, &mut &plain[..5000], &mut sink);
        assert!(matches!(part, Err(PagesError::PartPage(1))));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_file_is_records_or_an_error(
            records in prop::collection::vec(
                (prop_oneof![8 => 0u32..600, 2 => 4000..4200u32, 1 => any::<u32>()], prop::collection::vec(any::<u8>(), 0..600)),
                0..6,
            ),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            pages in 0usize..6,
            name in prop::sample::select(vec!["lz4", "zstd:1", "deflate", "auto", "t16", "t16h", "auto-t16h", "none"]),
        ) {
            let algorithm = crate::registry().find(name).unwrap();
            let mut file: Vec<u8> = Vec::new();
            compress(&*algorithm, 2 * PAGE_SIZE, &mut &corpus(pages)[..], &mut file).unwrap();
            for (at, byte) in damage {
                if !file.is_empty() {
                    let at = at.index(file.len());
                    file[at] = byte;
                }
            }
            for (len, bytes) in &records {
                file.extend(len.to_le_bytes());
                file.extend(bytes.iter().cycle().take(if bytes.is_empty() { 0 } else { *len.min(&9000) as usize }));
            }
            let mut out = Vec::new();
            match decompress(&*algorithm, 2 * PAGE_SIZE, &mut &file[..], &mut out) {
                Ok(totals) => prop_assert_eq!(out.len() as u64, totals.pages * PAGE_SIZE as u64),
                Err(error) => {
                    let is_of_the_file = matches!(
                        error,
                        PagesError::PartRecord(_) | PagesError::LongRecord { .. } | PagesError::Damaged(_)
                    );
                    prop_assert!(is_of_the_file, "{}", error);
                }
            }
        }
    }
}
