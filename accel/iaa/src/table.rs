//! The queues of each processor: one immutable table, replaced as a whole.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::queue::Queue;
use crate::settings::Settings;
use crate::topology::Topology;

/// The directions a queue serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Both.
    Generic,
    /// Compression.
    CompressOnly,
    /// Decompression.
    DecompressOnly,
}

impl QueueKind {
    /// The kind of queue `index` of a device with `count` queues.
    ///
    /// The last `g_comp_wqs_per_iaa` compress, those before them decompress; a device with no more
    /// queues than that uses all for both. (The kernel series' text agrees; its code then uses the
    /// first for both and compresses with the rest.)
    pub fn of(index: usize, count: usize, g_comp_wqs_per_iaa: usize) -> Self {
        assert!(index < count);
        if count <= g_comp_wqs_per_iaa || g_comp_wqs_per_iaa == 0 {
            Self::Generic
        } else if index < count - g_comp_wqs_per_iaa {
            Self::DecompressOnly
        } else {
            Self::CompressOnly
        }
    }
}

/// A device, as input to a table.
pub(crate) struct Attached {
    pub name: String,
    pub id: u32,
    pub package: usize,
    pub queues: Vec<Arc<Queue>>,
}

/// One processor's choice. Lines of their own: each processor moves its own cursors.
#[derive(Default)]
#[repr(align(64))]
struct Choice {
    lists: [u32; 2],
    cursors: [AtomicU32; 2],
}

pub(crate) struct Table {
    /// By package, then by device; compression and decompression.
    lists: Vec<[Box<[Arc<Queue>]>; 2]>,
    cpus: Box<[Choice]>,
}

impl Table {
    pub fn empty() -> Self {
        Table { lists: vec![Default::default()], cpus: Box::new([Choice::default()]) }
    }

    /// Distributes the queues of `devices`, which are in order, over the processors.
    pub fn new(devices: &[Attached], topology: &Topology, settings: &Settings) -> Self {
        // A device without queues takes no part.
        let devices: Vec<_> = devices.iter().filter(|device| !device.queues.is_empty()).collect();
        if devices.is_empty() {
            return Self::empty();
        }
        let own: Vec<[Vec<Arc<Queue>>; 2]> =
            devices.iter().map(|device| by_direction(device, settings)).collect();
        // A package without devices uses all of them.
        let all: Vec<usize> = (0..devices.len()).collect();
        let of_package = |package: usize| -> Vec<usize> {
            let found: Vec<_> = all.iter().copied().filter(|&at| devices[at].package == package).collect();
            if found.is_empty() {
                all.clone()
            } else {
                found
            }
        };
        let mut lists = Vec::new();
        let packages: Vec<Vec<usize>> = (0..topology.packages()).map(of_package).collect();
        for members in &packages {
            let join = |direction: usize| {
                members.iter().flat_map(|&at| own[at][direction].iter().cloned()).collect::<Box<[_]>>()
            };
            lists.push([join(0), join(1)]);
        }
        let first_device = lists.len();
        lists.extend(own.iter().map(|own| own.each_ref().map(|queues| queues.as_slice().into())));

        let distribute = [settings.distribute_comps, settings.distribute_decomps];
        let cpus = (0..topology.cpus().max(1)).map(|cpu| {
            let place = topology.place(cpu);
            let members = &packages[place.package];
            let rank = place.core * members.len() / topology.cores(place.package);
            let rank = rank.min(members.len() - 1);
            let mut choice = Choice::default();
            for direction in 0..2 {
                if distribute[direction] {
                    choice.lists[direction] = place.package as u32;
                    // Staggered: each processor starts at its own device's queues.
                    let before = members[..rank].iter().map(|&at| own[at][direction].len());
                    choice.cursors[direction] = AtomicU32::new(before.sum::<usize>() as u32);
                } else {
                    choice.lists[direction] = (first_device + members[rank]) as u32;
                }
            }
            choice
        });
        Table { cpus: cpus.collect(), lists }
    }

    /// The queues for processor `cpu`, and the index of the first of the next `count` jobs.
    #[inline]
    pub fn choose(&self, cpu: usize, is_compress: bool, count: u32) -> (&[Arc<Queue>], usize) {
        let direction = usize::from(!is_compress);
        let choice = match self.cpus.get(cpu) {
            Some(choice) => choice,
            None => &self.cpus[cpu % self.cpus.len()],
        };
        let list = &self.lists[choice.lists[direction] as usize][direction];
        let start = choice.cursors[direction].fetch_add(count, Ordering::Relaxed) as usize;
        (list, start)
    }
}

/// A device's queues that compress and that decompress.
fn by_direction(device: &Attached, settings: &Settings) -> [Vec<Arc<Queue>>; 2] {
    let count = device.queues.len();
    let mut lists = [Vec::new(), Vec::new()];
    for (index, queue) in device.queues.iter().enumerate() {
        let kind = QueueKind::of(index, count, settings.g_comp_wqs_per_iaa);
        if kind != QueueKind::DecompressOnly {
            lists[0].push(Arc::clone(queue));
        }
        if kind != QueueKind::CompressOnly {
            lists[1].push(Arc::clone(queue));
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use idxd::emulated::{EmulateSpec, Machine};

    use super::*;
    use crate::common::settings;
    use crate::device::Port;
    use crate::shared_counters::SharedCounters;

    fn devices(packages: usize, per_package: usize, queues: usize) -> Vec<Attached> {
        let spec = format!("sockets={packages},devices={per_package},queues={queues}");
        let machine = Machine::new(&spec.parse::<EmulateSpec>().unwrap()).unwrap();
        let counters = Arc::new(SharedCounters::new());
        let mut attached: Vec<Attached> = (0..machine.devices())
            .map(|index| Attached {
                name: format!("iax{index}"),
                id: index as u32,
                package: index / per_package,
                queues: Vec::new(),
            })
            .collect();
        for id in machine.queues() {
            let port = Port {
                name: format!("wq{}.{}", id.device, id.queue),
                entries: 16,
                blocks_on_fault: false,
                portal: Box::new(machine.open(id).unwrap()),
            };
            attached[id.device].queues.push(Arc::new(Queue::new(port, false, 10, Arc::clone(&counters))));
        }
        attached
    }

    fn names(table: &Table, cpu: usize, is_compress: bool) -> (Vec<String>, usize) {
        let (list, start) = table.choose(cpu, is_compress, 0);
        (list.iter().map(|queue| queue.name.clone()).collect(), start)
    }

    #[test]
    fn kinds_follow_the_number_of_queues() {
        use QueueKind::*;
        let kinds = |count, compress| -> Vec<_> {
            (0..count).map(|index| QueueKind::of(index, count, compress)).collect()
        };
        assert_eq!(kinds(1, 1), [Generic]);
        assert_eq!(kinds(2, 1), [DecompressOnly, CompressOnly]);
        assert_eq!(kinds(4, 1), [DecompressOnly, DecompressOnly, DecompressOnly, CompressOnly]);
        assert_eq!(kinds(4, 3), [DecompressOnly, CompressOnly, CompressOnly, CompressOnly]);
        assert_eq!(kinds(2, 2), [Generic, Generic]);
        assert_eq!(kinds(3, 0), [Generic, Generic, Generic]);
    }

    /// The reference system of the kernel series: 2 packages of 56 cores, 4 devices each, 2 queues
    /// a device.
    #[test]
    fn the_reference_system_is_mapped_as_published() {
        let devices = devices(2, 4, 2);
        let topology = Topology::regular(2, 56);
        let table = Table::new(&devices, &topology, &settings(""));
        for (cpu, mapped) in [(0, 0), (13, 0), (14, 1), (27, 1), (28, 2), (55, 3), (56, 4), (70, 5), (111, 7)]
        {
            // Decompression stays on the own device's first queue.
            assert_eq!(names(&table, cpu, false).0, [format!("wq{mapped}.0")], "cpu {cpu}");
            // Compression goes to the second queues of the package's devices, the own one's first.
            let package = mapped / 4;
            let expected: Vec<_> = (0..4).map(|device| format!("wq{}.1", package * 4 + device)).collect();
            assert_eq!(names(&table, cpu, true), (expected, mapped % 4), "cpu {cpu}");
        }
        let narrow = settings("distribute_comps=0,distribute_decomps=1");
        let table = Table::new(&devices, &topology, &narrow);
        assert_eq!(names(&table, 14, true).0, ["wq1.1"]);
        assert_eq!(
            names(&table, 14, false),
            (["wq0.0", "wq1.0", "wq2.0", "wq3.0"].map(str::to_owned).to_vec(), 1)
        );
    }

    #[test]
    fn one_device_serves_every_package_and_one_queue_both_directions() {
        let devices = devices(1, 1, 1);
        let table = Table::new(&devices, &Topology::regular(2, 3), &settings(""));
        for cpu in 0..8 {
            for is_compress in [false, true] {
                assert_eq!(names(&table, cpu, is_compress).0, ["wq0.0"]);
            }
        }
    }

    #[test]
    fn devices_outnumbering_cores_are_all_used() {
        let devices = devices(1, 8, 1);
        let table = Table::new(&devices, &Topology::regular(1, 2), &settings("distribute_decomps=1"));
        assert_eq!(names(&table, 0, true).0.len(), 8);
        assert_eq!(names(&table, 1, false), (names(&table, 0, false).0, 4));
    }

    #[test]
    fn without_queues_there_is_nothing_to_choose() {
        let mut devices = devices(1, 2, 1);
        for device in &mut devices {
            device.queues.clear();
        }
        let table = Table::new(&devices, &Topology::regular(1, 2), &settings(""));
        assert!(names(&table, 1, true).0.is_empty() && names(&table, 7, false).0.is_empty());
    }

    #[test]
    fn jobs_go_round() {
        let devices = devices(1, 3, 1);
        let table = Table::new(&devices, &Topology::regular(1, 1), &settings(""));
        let starts: Vec<_> = (0..3).map(|_| table.choose(0, true, 8).1).collect();
        assert_eq!(starts, [0, 8, 16]);
    }
}
