//! Processors by package, as needed to spread work over devices.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A processor's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoreId {
    /// Its package, counted from 0 without gaps.
    pub package: usize,
    /// Its core's rank within the package. Hyper-threads share it.
    pub core: usize,
}

/// The processors of a machine.
///
/// Packages and not NUMA nodes: machines with sub-NUMA clusters have more nodes than packages, and
/// devices belong to packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    places: Vec<CoreId>,
    packages: usize,
}

impl Topology {
    /// The topology of this machine.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/sys/devices/system/cpu"), sys::cpu::count())
    }

    /// The topology from files like those below `/sys/devices/system/cpu`. Processors without files
    /// are in package 0.
    pub fn read(root: &Path, cpus: usize) -> Self {
        let number = |cpu: usize, name: &str| {
            let text = fs::read_to_string(root.join(format!("cpu{cpu}/topology/{name}"))).ok()?;
            text.trim().parse::<i64>().ok()
        };
        let ids = |cpu: usize| {
            let package = number(cpu, "physical_package_id").unwrap_or(0);
            // Cores are unique only within a die on some machines.
            let die = number(cpu, "die_id").unwrap_or(0);
            (package, die, number(cpu, "core_id").unwrap_or(cpu as i64))
        };
        Self::from_ids(&(0..cpus).map(ids).collect::<Vec<_>>())
    }

    /// From package, die and core of each processor.
    fn from_ids(ids: &[(i64, i64, i64)]) -> Self {
        // A core's rank is its first processor's among the package's cores.
        let mut packages: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
        for &(package, die, core) in ids {
            let cores = packages.entry(package).or_default();
            if !cores.contains(&(die, core)) {
                cores.push((die, core));
            }
        }
        let ranks: BTreeMap<(i64, i64, i64), CoreId> = packages
            .iter()
            .enumerate()
            .flat_map(|(rank, (&package, cores))| {
                let place = move |core| CoreId { package: rank, core };
                cores.iter().enumerate().map(move |(core, &(die, id))| ((package, die, id), place(core)))
            })
            .collect();
        let places = ids.iter().map(|id| ranks[id]).collect();
        Topology { places, packages: packages.len().max(1) }
    }

    /// `packages` packages of `cores` single-threaded cores, numbered in sequence.
    pub fn regular(packages: usize, cores: usize) -> Self {
        assert!(packages > 0 && cores > 0);
        let place = |cpu| CoreId { package: cpu / cores, core: cpu % cores };
        Topology { places: (0..packages * cores).map(place).collect(), packages }
    }

    /// This machine's processors, as if they were in `packages` packages.
    pub fn emulated(packages: usize) -> Self {
        let real = Self::of_this_machine();
        if real.packages >= packages {
            return real;
        }
        let cpus = real.places.len();
        Self::regular(packages, cpus.div_ceil(packages))
    }

    /// Number of processors.
    pub fn cpus(&self) -> usize {
        self.places.len()
    }

    /// Number of packages.
    pub fn packages(&self) -> usize {
        self.packages
    }

    /// The place of processor `cpu`. Processors beyond the known ones wrap around.
    pub fn place(&self, cpu: usize) -> CoreId {
        self.places.get(cpu % self.places.len().max(1)).copied().unwrap_or_default()
    }

    /// Cores of a package.
    pub fn cores(&self, package: usize) -> usize {
        let in_package = self.places.iter().filter(|place| place.package == package);
        in_package.map(|place| place.core + 1).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the kernel series: 2 packages of 56 cores, hyper-threads numbered from 112.
    #[test]
    fn hyper_threads_share_their_cores_rank() {
        let ids: Vec<_> = (0..224).map(|cpu| (cpu / 56 % 2, 0, cpu % 56)).collect();
        let topology = Topology::from_ids(&ids);
        assert_eq!((topology.packages(), topology.cores(0), topology.cores(1)), (2, 56, 56));
        assert_eq!(topology.place(13), CoreId { package: 0, core: 13 });
        assert_eq!(topology.place(125), CoreId { package: 0, core: 13 });
        assert_eq!(topology.place(56), CoreId { package: 1, core: 0 });
        assert_eq!(topology.place(223), CoreId { package: 1, core: 55 });
    }

    #[test]
    fn processors_that_alternate_between_packages_are_ranked_in_their_own() {
        let ids: Vec<_> = (0..8).map(|cpu| (cpu % 2 * 3, 0, cpu / 2)).collect();
        let topology = Topology::from_ids(&ids);
        assert_eq!(topology.place(6), CoreId { package: 0, core: 3 });
        assert_eq!(topology.place(7), CoreId { package: 1, core: 3 });
    }

    #[test]
    fn files_are_read_and_missing_ones_mean_one_package() {
        let root = std::env::temp_dir().join(format!("iaa-topology-{}", std::process::id()));
        for cpu in 0..4 {
            let directory = root.join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("physical_package_id"), format!("{}\n", cpu / 2)).unwrap();
            fs::write(directory.join("core_id"), format!("{}\n", cpu % 2 * 4)).unwrap();
        }
        let topology = Topology::read(&root, 4);
        assert_eq!((topology.packages(), topology.place(3)), (2, CoreId { package: 1, core: 1 }));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(Topology::read(&root, 4), Topology::regular(1, 4));
        assert!(Topology::of_this_machine().cpus() >= 1);
    }
}
