//! Processes that have the preload object and no connection: their pagers do not reach the
//! supervisor.

use super::looks::Looks;

/// Looks at which a process had the object and no connection, until it counts as a stranger: it may
/// be slow.
const LOOKS: u32 = 10;
/// Strangers that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// A process that may be running without uzswap.
struct Suspect {
    pid: i32,
    name: String,
    /// Looks in a row at which it had the object and no connection.
    looks: u32,
    /// The look at its mappings.
    number: u64,
    is_looked_at: bool,
}

/// Those that were found, and those that may turn out to be some.
pub struct Strangers {
    known: Vec<i32>,
    suspects: Vec<Suspect>,
    last: u64,
    /// Whether the object is mapped. To read a process's mappings, its lock is needed.
    looks: Looks<bool>,
}

impl Strangers {
    /// None so far.
    pub fn new() -> Self {
        Strangers { known: Vec::new(), suspects: Vec::new(), last: 0, looks: Looks::new() }
    }

    /// Begins a look at the processes that are not `managed`. Returns the names of those that the
    /// last looks found to be strangers, each process once.
    pub fn look(&mut self, processes: &[i32], managed: &[i32]) -> Vec<String> {
        let found = self.take_found(managed);
        let mut suspects = Vec::new();
        for pid in processes.iter().copied() {
            if managed.contains(&pid) || self.known.contains(&pid) {
                continue;
            }
            // Young processes have not come to say hello yet, and zombies never will. Nor has a new
            // program of an old process, for long on a busy machine.
            let Some(name) = settled_name(pid) else { continue };
            let before = self.suspects.iter().position(|known| known.pid == pid && known.name == name);
            let before = before.map(|index| self.suspects.swap_remove(index));
            let mut suspect =
                before.unwrap_or(Suspect { pid, name, looks: 0, number: 0, is_looked_at: false });
            if !suspect.is_looked_at {
                self.last += 1;
                suspect.number = self.last;
                suspect.is_looked_at = self.looks.ask(self.last, move || has_object(pid));
            }
            suspects.push(suspect);
        }
        self.suspects = suspects;
        found
    }

    fn take_found(&mut self, managed: &[i32]) -> Vec<String> {
        let mut found = Vec::new();
        while let Some((number, has_object)) = self.looks.take() {
            let looked_at = |one: &Suspect| one.is_looked_at && one.number == number;
            let Some(index) = self.suspects.iter().position(looked_at) else { continue };
            let suspect = &mut self.suspects[index];
            suspect.is_looked_at = false;
            suspect.looks = if has_object && !managed.contains(&suspect.pid) { suspect.looks + 1 } else { 0 };
            if suspect.looks >= LOOKS {
                if self.known.len() >= KNOWN_MAX {
                    self.known.clear();
                }
                let stranger = self.suspects.swap_remove(index);
                self.known.push(stranger.pid);
                found.push(stranger.name);
            }
        }
        found
    }
}

/// Whether the object is mapped in a process. May take as long as the process likes.
fn has_object(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains(&*super::OBJECT_NAME.to_string_lossy())
}

/// A process's name, if it is alive and at least half a second old.
fn settled_name(pid: i32) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let (name, started) = alive_in(&stat)?;
    let uptime: f64 =
        std::fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    // SAFETY: asks for a constant.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    (uptime - started / ticks > 0.5).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Name and start, in ticks since the machine's, from the text of /proc/PID/stat, unless the
/// process has ended. The name may be any bytes, parentheses and spaces among them.
fn alive_in(stat: &[u8]) -> Option<(&[u8], f64)> {
    let (_, from_name) = stat.split_at(stat.iter().position(|byte| *byte == b'(')? + 1);
    let (name, rest) = from_name.split_at(from_name.iter().rposition(|byte| *byte == b')')?);
    let mut fields = rest[1..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = fields.next()?;
    let started = std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()?;
    (!matches!(state, b"Z" | b"X")).then_some((name, started))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_process_is_alive() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let (name, started) = alive_in(&stat).unwrap();
        let comm = std::fs::read("/proc/self/comm").unwrap();
        assert!(comm.strip_suffix(b"\n") == Some(name) && started > 0.0);
    }

    #[test]
    fn a_process_counts_after_many_looks_and_once() {
        let mut strangers = Strangers::new();
        let suspect =
            |looks, number| Suspect { pid: 7, name: "seven".to_owned(), looks, number, is_looked_at: true };
        strangers.suspects.push(suspect(LOOKS - 2, 1));
        let look = |strangers: &mut Strangers, number, has_object| {
            assert!(strangers.looks.ask(number, move || has_object));
            // Until the thread has looked.
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let result = strangers.looks.take_until(limit).unwrap();
            assert!(strangers.looks.ask(result.0, move || result.1));
            while strangers.looks.is_busy() {
                std::thread::yield_now();
            }
        };
        look(&mut strangers, 1, true);
        assert!(strangers.take_found(&[]).is_empty());
        // A result that is no suspect's, one without the object, which begins again, one of a
        // managed process.
        for (number, has_object, managed, looks) in
            [(9, true, vec![], LOOKS - 1), (2, false, vec![], 0), (3, true, vec![7], 0)]
        {
            strangers.suspects[0] = suspect(LOOKS - 1, if number == 9 { 2 } else { number });
            look(&mut strangers, number, has_object);
            assert!(strangers.take_found(&managed).is_empty());
            assert_eq!(strangers.suspects[0].looks, looks);
        }
        strangers.suspects[0] = suspect(LOOKS - 1, 4);
        look(&mut strangers, 4, true);
        assert_eq!(strangers.take_found(&[]), ["seven"]);
        assert!(strangers.suspects.is_empty() && strangers.known == [7]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_process_of_any_name_is_known(
            name in prop::collection::vec(any::<u8>(), 0..16), state in "[RSDZTX]", started in any::<u64>(),
        ) {
            let mut stat = b"17 (".to_vec();
            stat.extend(&name);
            let fields = "1 ".repeat(18);
            stat.extend(format!(") {state} {fields}{started} 5 6\n").bytes());
            let expected = (state != "Z" && state != "X").then_some((&name[..], started as f64));
            prop_assert_eq!(alive_in(&stat), expected);
        }

        #[test]
        fn any_text_is_a_process_or_none(text in prop::collection::vec(prop_oneof![Just(b')'), Just(b'('), Just(b' '), any::<u8>()], 0..200)) {
            if let Some((name, _)) = alive_in(&text) {
                prop_assert!(text.windows(name.len() + 2).any(|part| part[0] == b'(' && part[part.len() - 1] == b')'));
            }
        }
    }
}
