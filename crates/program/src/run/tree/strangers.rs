//! Processes with the preload object and no connection: their pagers do not reach the supervisor.

use crate::run::peers::looks::Looks;
use crate::run::tree::attach;
use crate::stat::Stat;

/// Consecutive looks with the object and no connection that make a stranger, not a slow process.
const LOOKS: u32 = 10;
const KNOWN_MAX: usize = 1 << 16;

struct Suspect {
    pid: i32,
    name: String,
    /// Consecutive looks with the object and without a connection.
    looks: u32,
    number: u64,
    is_looked_at: bool,
}

#[derive(Default)]
pub struct Strangers {
    known: Vec<i32>,
    suspects: Vec<Suspect>,
    last: u64,
    /// Whether the object is mapped. Reading a process's mappings needs its lock.
    looks: Looks<bool>,
}

impl Strangers {
    /// Looks at processes that are not `managed`; names each stranger found earlier, once.
    pub fn look(&mut self, processes: &[i32], managed: &[i32]) -> Vec<String> {
        let found = self.take_found(managed);
        let mut suspects = Vec::new();
        for pid in processes.iter().copied() {
            if managed.contains(&pid) || self.known.contains(&pid) || attach::is_agent(pid) {
                continue;
            }
            // Skip young processes, which have not said hello yet, and zombies. On a busy machine a
            // new program of an old process takes long, too.
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

/// Returns whether a process maps the object. May block for as long as the process likes.
fn has_object(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains(&*crate::run::OBJECT_NAME.to_string_lossy())
}

/// Returns a process's name if it is alive and at least half a second old.
fn settled_name(pid: i32) -> Option<String> {
    let Stat { name, started, .. } = Stat::of_living(pid as u32)?;
    let uptime: f64 =
        std::fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    // SAFETY: asks for a constant.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    (uptime - started as f64 / ticks > 0.5).then(|| String::from_utf8_lossy(&name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_after_many_looks_and_once() {
        let mut strangers = Strangers::default();
        let suspect =
            |looks, number| Suspect { pid: 7, name: "seven".to_owned(), looks, number, is_looked_at: true };
        strangers.suspects.push(suspect(LOOKS - 2, 1));
        let look = |strangers: &mut Strangers, number, has_object| {
            assert!(strangers.looks.ask(number, move || has_object));
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let result = strangers.looks.take_until(limit).unwrap();
            assert!(strangers.looks.ask(result.0, move || result.1));
            while strangers.looks.is_busy() {
                std::thread::yield_now();
            }
        };
        look(&mut strangers, 1, true);
        assert!(strangers.take_found(&[]).is_empty());
        // Without a suspect, without the object (restarts the count), of a managed process.
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
}
