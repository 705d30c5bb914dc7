//! The trace as a file: streamed, a few bytes a reference before any compressor sees it.
//!
//! ```text
//! "uzswap trace 1\n"  filter_pages: number  command: length, bytes
//! then for each reference
//!   head      bits 0..1 kind, bit 2 another process, bit 3 another thread, bit 4 more pages than one
//!   process   number, if bit 2        thread    number, if bit 3
//!   page      signed difference to the process's last one
//!   pages     number, if bit 4        time      microseconds since the last reference
//! ```
//!
//! Numbers are LEB128; signed ones have their sign in bit 0. A trace ends where the stream does,
//! between two references.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use super::{Kind, Reference};

const MAGIC: &[u8] = b"uzswap trace 1\n";
/// Longest command line that is kept.
const COMMAND_MAX: usize = 64 << 10;

/// What a trace is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meta {
    /// Pages that the recorder left in memory: references to these are missing.
    pub filter_pages: u64,
    /// The program and its arguments.
    pub command: String,
}

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The stream failed.
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
    /// Other bytes than a trace's.
    #[error("this is no trace: {0}")]
    Malformed(&'static str),
}

/// What both sides remember of the references before.
#[derive(Default)]
struct Context {
    process: u32,
    thread: u32,
    time_us: u64,
    pages: HashMap<u32, u64>,
}

/// Writes a trace.
pub struct Writer<W> {
    sink: W,
    before: Context,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// What the sink returns.
    pub fn new(mut sink: W, meta: &Meta) -> io::Result<Self> {
        let mut buffer = MAGIC.to_vec();
        put(&mut buffer, meta.filter_pages);
        let command = &meta.command.as_bytes()[..meta.command.len().min(COMMAND_MAX)];
        put(&mut buffer, command.len() as u64);
        buffer.extend(command);
        sink.write_all(&buffer)?;
        Ok(Writer { sink, before: Context::default(), buffer })
    }

    /// Adds a reference. Times that go backwards count as none passed.
    ///
    /// # Errors
    /// What the sink returns.
    pub fn write(&mut self, reference: &Reference) -> io::Result<()> {
        let Writer { sink, before, buffer } = self;
        let process_changes = reference.process != before.process;
        let thread_changes = reference.thread != before.thread;
        let head = match reference.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Discard => 2,
        };
        let flags = u8::from(process_changes) << 2
            | u8::from(thread_changes) << 3
            | u8::from(reference.pages != 1) << 4;
        buffer.clear();
        buffer.push(head | flags);
        if process_changes {
            put(buffer, reference.process.into());
        }
        if thread_changes {
            put(buffer, reference.thread.into());
        }
        let last = before.pages.entry(reference.process).or_default();
        let difference = reference.page.wrapping_sub(*last) as i64;
        put(buffer, (difference << 1 ^ difference >> 63) as u64);
        if reference.pages != 1 {
            put(buffer, reference.pages);
        }
        let time_us = reference.time_ns / 1000;
        put(buffer, time_us.saturating_sub(before.time_us));
        *last = reference.page;
        (before.process, before.thread) = (reference.process, reference.thread);
        before.time_us = before.time_us.max(time_us);
        sink.write_all(buffer)
    }

    /// Ends the trace; returns the sink.
    ///
    /// # Errors
    /// What the sink returns.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}

/// Reads a trace, reference by reference.
pub struct Reader<R> {
    source: R,
    meta: Meta,
    before: Context,
}

impl<R: BufRead> Reader<R> {
    /// Reads what the trace is of.
    ///
    /// # Errors
    /// When the source fails, or has something else.
    pub fn new(mut source: R) -> Result<Self, TraceError> {
        let mut magic = [0; MAGIC.len()];
        match source.read_exact(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(TraceError::Malformed("it begins with other bytes")),
        }
        let filter_pages = need(&mut source)?;
        let len = need(&mut source)? as usize;
        if len > COMMAND_MAX {
            return Err(TraceError::Malformed("its command is too long"));
        }
        let mut command = vec![0; len];
        source.read_exact(&mut command)?;
        let command = String::from_utf8_lossy(&command).into_owned();
        Ok(Reader { source, meta: Meta { filter_pages, command }, before: Context::default() })
    }

    /// What the trace is of.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(&mut self) -> Result<Option<Reference>, TraceError> {
        let mut head = [0];
        if self.source.read(&mut head)? == 0 {
            return Ok(None);
        }
        let [head] = head;
        let kind = match head & 3 {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Discard,
            _ => return Err(TraceError::Malformed("a reference of no kind")),
        };
        if head >> 5 != 0 {
            return Err(TraceError::Malformed("a reference with unknown marks"));
        }
        let Reader { source, before, .. } = self;
        if head & 4 != 0 {
            before.process = need(source)? as u32;
        }
        if head & 8 != 0 {
            before.thread = need(source)? as u32;
        }
        let difference = need(source)?;
        let last = before.pages.entry(before.process).or_default();
        *last = last.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg());
        let page = *last;
        let pages = if head & 16 != 0 { need(source)? } else { 1 };
        before.time_us = before.time_us.saturating_add(need(source)?);
        let (process, thread) = (before.process, before.thread);
        let time_ns = before.time_us.saturating_mul(1000);
        Ok(Some(Reference { kind, process, thread, page, pages, time_ns }))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Reference, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Appends a number.
fn put(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        buffer.push(number as u8 | 0x80);
        number >>= 7;
    }
    buffer.push(number as u8);
}

/// Reads a number that must be there.
fn need(source: &mut impl Read) -> Result<u64, TraceError> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let mut byte = [0];
        source.read_exact(&mut byte)?;
        if shift == 63 && byte[0] > 1 {
            return Err(TraceError::Malformed("a number beyond 64 bits"));
        }
        number |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::super::RAW_BYTES;
    use super::*;
    use proptest::prelude::*;

    fn reference() -> impl Strategy<Value = Reference> {
        let kinds = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Discard)];
        let page = prop_oneof![0..1u64 << 36, (0..40u64).prop_map(|page| (1 << 34) + page)];
        (kinds, 0..4u32, 0..5u32, page, 1..9u64, 0..1u64 << 20).prop_map(
            |(kind, process, thread, page, pages, time_us)| {
                let pages = if kind == Kind::Discard { pages } else { 1 };
                Reference { kind, process, thread, page, pages, time_ns: time_us * 1000 }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(mut references in prop::collection::vec(reference(), 0..60)) {
            references.sort_by_key(|reference| reference.time_ns);
            let meta = Meta { filter_pages: 4096, command: "perl concordance.pl".to_owned() };
            let mut writer = Writer::new(Vec::new(), &meta).unwrap();
            for reference in &references {
                writer.write(reference).unwrap();
                prop_assert_eq!(Reference::from_raw(&reference.to_raw()), Some(*reference));
            }
            let file = writer.finish().unwrap();
            let reader = Reader::new(&file[..]).unwrap();
            prop_assert_eq!(reader.meta(), &meta);
            let read: Vec<_> = reader.map(Result::unwrap).collect();
            prop_assert_eq!(read, references);
        }

        #[test]
        fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = MAGIC.to_vec();
            whole.extend(&bytes);
            if let Ok(reader) = Reader::new(&whole[..]) {
                // As many references as there are bytes, at most, and then an end or an error.
                prop_assert!(reader.take_while(Result::is_ok).count() <= bytes.len());
            }
            let _ = Reader::new(&bytes[..]).is_err();
            if let Ok(raw) = <[u8; RAW_BYTES]>::try_from(&bytes[..bytes.len().min(RAW_BYTES)]) {
                let read = Reference::from_raw(&raw);
                prop_assert!(read.is_none_or(|reference| reference.to_raw() == raw));
            }
        }
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(matches!(Reader::new(&b"uzswap trace 2\n"[..]), Err(TraceError::Malformed(_))));
        assert!(matches!(Reader::new(&b""[..]), Err(TraceError::Malformed(_))));
        let mut cut = MAGIC.to_vec();
        cut.extend([0, 0, 1, 0x80]);
        let mut reader = Reader::new(&cut[..]).unwrap();
        assert!(reader.next().unwrap().is_err(), "it ends inside a reference");
    }
}
