//! Parsing of /proc/PID/stat, of a process or a thread.

use std::fs;

/// Parses a process id of a command line.
pub fn pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid| (1..=PID_MAX).contains(pid));
    pid.ok_or_else(|| "write a process id, a number as ps(1) shows".to_owned())
}

/// The kernel's limit of process ids on 64-bit machines.
const PID_MAX: u32 = 1 << 22;

/// Name, state letter, parent, minor faults, start in ticks since boot, and the stack's address
/// (exec moves it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub name: Vec<u8>,
    pub state: u8,
    pub parent: u32,
    pub minor_faults: u64,
    pub started: u64,
    pub stack: u64,
}

impl Stat {
    /// Reads a process's entry; `None` if it does not exist.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The same; `None` for a zombie, too.
    pub fn of_living(pid: u32) -> Option<Self> {
        Self::of(pid).filter(|stat| !matches!(stat.state, b'Z' | b'X'))
    }

    /// Parses the text. The name in parentheses may contain any bytes, even parentheses.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let begin = text.iter().position(|byte| *byte == b'(')? + 1;
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let fields: Vec<&str> =
            std::str::from_utf8(&text[end + 1..]).ok()?.split_ascii_whitespace().collect();
        // proc(5) numbers the fields from 1: the state is field 3.
        let number = |field: usize| fields.get(field - 3)?.parse().ok();
        Some(Stat {
            name: text.get(begin..end)?.to_vec(),
            state: *fields.first()?.as_bytes().first()?,
            parent: number(4)? as u32,
            minor_faults: number(10)?,
            started: number(22)?,
            stack: number(28)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn process_ids_are_numbers() {
        assert_eq!(pid("1"), Ok(1));
        for wrong in ["", "x", "0", "-1", "4194305", "99999999999"] {
            assert!(pid(wrong).unwrap_err().contains("process id"), "{wrong}");
        }
    }

    #[test]
    fn this_process_is_known() {
        let own = Stat::of(std::process::id()).unwrap();
        // SAFETY: takes nothing.
        assert_eq!(own.parent, unsafe { libc::getppid() } as u32);
        let name = fs::read("/proc/self/comm").unwrap();
        assert!(name.strip_suffix(b"\n") == Some(&own.name) && own.started > 0);
        assert_eq!(Stat::of_living(std::process::id()).map(|stat| stat.started), Some(own.started));
        for short in [&b""[..], b"17 (cat", b"17 (cat) S 4", b"17 )cat( S 4"] {
            assert_eq!(Stat::parse(short), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_process_of_any_name_is_known(
            name in prop::collection::vec(any::<u8>(), 0..16), state in "[RSDZTX]", parent in any::<u32>(), started in any::<u64>(),
        ) {
            let mut text = b"17 (".to_vec();
            text.extend(&name);
            text.extend(format!(") {state} {parent} {}{started} 1 1 1 1 1 77 5 6\n", "1 ".repeat(17)).bytes());
            let stat = Stat::parse(&text).unwrap();
            prop_assert_eq!(stat, Stat { name, state: state.as_bytes()[0], parent, minor_faults: 1, started, stack: 77 });
        }

        #[test]
        fn any_text_is_a_process_or_none(text in prop::collection::vec(prop_oneof![Just(b')'), Just(b'('), Just(b' '), any::<u8>()], 0..200)) {
            if let Some(stat) = Stat::parse(&text) {
                prop_assert!(text.windows(stat.name.len() + 2).any(|part| part[0] == b'(' && part[part.len() - 1] == b')'));
            }
        }
    }
}
