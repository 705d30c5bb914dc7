//! Processors and the NUMA nodes they belong to.

/// The processor this thread runs on just now, or 0 where the system does not say. A hint: the next moment it may be
/// another.
pub fn current() -> usize {
    // SAFETY: no arguments and no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// Processors the machine may have, at least 1.
pub fn count() -> usize {
    // SAFETY: no memory is involved.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(cpus).unwrap_or(1).max(1)
}

/// The NUMA node of each of `cpus` processors; 0 for all where the kernel does not say.
pub fn nodes(cpus: usize) -> Vec<u16> {
    let mut nodes = vec![0; cpus];
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    for node in parse_list(online.trim()) {
        let list = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
        let (Ok(list), Ok(node)) = (list, u16::try_from(node)) else { continue };
        for cpu in parse_list(list.trim()) {
            if let Some(slot) = nodes.get_mut(cpu) {
                *slot = node;
            }
        }
    }
    nodes
}

/// Numbers of a list like `0-3,8,10-11`.
fn parse_list(list: &str) -> impl Iterator<Item = usize> + '_ {
    list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_ranges_and_numbers() {
        assert_eq!(parse_list("0-3,8,10-11").collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("").count(), 0);
        assert_eq!(parse_list("x,5").collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn this_thread_runs_on_one_of_the_processors() {
        assert!(count() >= 1);
        assert!(current() < count());
        assert_eq!(nodes(count()).len(), count());
    }
}
