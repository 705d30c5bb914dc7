//! Processors and their NUMA nodes.

/// The current processor of this thread, 0 if unknown. A hint: the thread may move at any moment.
///
/// Does not use the C library's sched_getcpu(), which reads the thread's own storage: in threads
/// that the C library did not start this storage is never updated, and the call returns 0.
#[cfg(target_arch = "x86_64")]
pub fn current() -> usize {
    use std::sync::atomic::{AtomicU8, Ordering};
    /// 0: unknown; 1: RDPID; 2: RDTSCP; 3: neither.
    static KIND: AtomicU8 = AtomicU8::new(0);
    let word: u64 = match KIND.load(Ordering::Relaxed) {
        1 => {
            let word;
            // SAFETY: the processor has the instruction, which only reads a kernel register.
            unsafe { std::arch::asm!("rdpid {}", out(reg) word, options(nomem, nostack, preserves_flags)) };
            word
        }
        2 => {
            let mut word = 0;
            // SAFETY: the processor has the instruction; it writes to `word`.
            unsafe { std::arch::x86_64::__rdtscp(&mut word) };
            word.into()
        }
        3 => 0,
        _ => {
            KIND.store(kind(), Ordering::Relaxed);
            return current();
        }
    };
    // Linux keeps the node in the upper bits.
    word as usize & 0xfff
}

/// The instruction with which this processor reports its number.
#[cfg(target_arch = "x86_64")]
fn kind() -> u8 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7, ECX bit 22: RDPID. Leaf 8000_0001, EDX bit 27: RDTSCP.
    let (leaves, extended_leaves) = (__cpuid(0).eax, __cpuid(0x8000_0000).eax);
    if leaves >= 7 && __cpuid_count(7, 0).ecx >> 22 & 1 != 0 {
        return 1;
    }
    if extended_leaves >= 0x8000_0001 && __cpuid(0x8000_0001).edx >> 27 & 1 != 0 {
        return 2;
    }
    3
}

/// The current processor of this thread, or 0 if unknown. A hint: the thread may move at any
/// moment.
#[cfg(not(target_arch = "x86_64"))]
pub fn current() -> usize {
    let mut cpu: libc::c_uint = 0;
    // A system call, because the C library's sched_getcpu() returns 0 in threads that it did not
    // start. SAFETY: the first argument is writable, the others may be null.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, 0usize, 0usize) };
    if result == 0 {
        cpu as usize
    } else {
        0
    }
}

/// Number of processors that the machine may have, at least 1.
pub fn count() -> usize {
    // SAFETY: no memory is involved.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(cpus).unwrap_or(1).max(1)
}

/// The NUMA node of each of `cpus` processors; 0 for all if unknown.
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

/// The highest accepted number. Linux has at most 8192 processors and 1024 nodes.
const NUMBER_MAX: usize = u16::MAX as usize;

/// Numbers of a list like `0-3,8,10-11`.
fn parse_list(list: &str) -> impl Iterator<Item = usize> + '_ {
    list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last.min(NUMBER_MAX) + 1,
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_have_ranges_and_numbers() {
        assert_eq!(parse_list("0-3,8,10-11").collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("").count(), 0);
        assert_eq!(parse_list("x,5").collect::<Vec<_>>(), [5]);
    }

    static SEEN: [AtomicUsize; 64] = [const { AtomicUsize::new(usize::MAX) }; 64];

    extern "C" fn look(cpu: usize) {
        crate::thread::pin(cpu);
        SEEN[cpu].store(current(), Ordering::Release);
    }

    #[test]
    fn threads_that_the_c_library_did_not_start_know_their_processor() {
        use crate::thread::{allowed_cpus, spawn, thread_bytes, Files};
        if crate::is_emulated() {
            return;
        }
        let mut cpus = [0; 64];
        let allowed = allowed_cpus(&mut cpus);
        for &cpu in cpus[..allowed].iter().filter(|&&cpu| cpu < 64) {
            let memory = crate::memory::map(thread_bytes()).unwrap();
            // SAFETY: the memory is the thread's for ever.
            unsafe { spawn(memory, Files::Shared, look, cpu) }.unwrap();
            while SEEN[cpu].load(Ordering::Acquire) == usize::MAX {
                std::thread::yield_now();
            }
            assert_eq!(SEEN[cpu].load(Ordering::Relaxed), cpu);
        }
    }

    #[test]
    fn this_thread_runs_on_one_of_the_processors() {
        assert!(count() >= 1);
        assert!(current() < count());
        assert_eq!(nodes(count()).len(), count());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_list_ends(text in "[0-9,x -]{0,60}", start in 0usize..70_000, end in any::<usize>()) {
            prop_assert!(parse_list(&text).count() <= text.len() * (NUMBER_MAX + 1));
            let list = format!("{start}-{end}");
            prop_assert!(parse_list(&list).all(|number| (start..=end).contains(&number)));
        }
    }
}
