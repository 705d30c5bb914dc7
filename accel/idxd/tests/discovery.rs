//! Discovery on trees of files, whole and broken.

use std::fs;
use std::path::{Path, PathBuf};

use idxd::sysfs::{discover, Discovery, Files, Model, QueueMode, QueueType, State, Tree};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uzswap-discovery-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn of(name: &str, model: &Model) -> Self {
        let directory = Self::new(name);
        for (path, value) in model.files() {
            directory.put(&path, &format!("{value}\n"));
        }
        directory
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn discover(&self) -> Discovery {
        discover(&Files::new(&self.0))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn model(spec: &str) -> Model {
    Model::new(&spec.parse().unwrap())
}

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

#[test]
fn files_and_memory_show_the_same() {
    let model = model("sockets=2,devices=2,queues=2,generation=2,mode=shared,block_on_fault=1");
    let directory = Directory::of("same", &model);
    let found = directory.discover();
    assert_eq!(found, discover(&model));
    assert!(found.has_bus && found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.devices.len(), 4);
    let device = found.device("iax3").unwrap();
    assert_eq!((device.number, device.generation(), device.package), (3, 2, Some(1)));
    assert_eq!((device.engines.len(), device.queues.len(), device.groups.len()), (8, 8, 4));
    assert_eq!((device.engines_in(0), device.engines_in(1)), (8, 0));
    assert!(device.capabilities.header_generation() && device.capabilities.block_on_fault());
    assert!(device.configurable && device.pasid_enabled && !device.has_software_error());
    let queue = &device.queues[1];
    assert_eq!((queue.name.as_str(), queue.size, queue.threshold, queue.group), ("wq3.1", 64, 64, Some(0)));
    assert_eq!((queue.mode, queue.kind, queue.state), (QueueMode::Shared, QueueType::User, State::Enabled));
    assert!(queue.block_on_fault);
    assert_eq!(device.queues[2].state, State::Disabled);
    assert_eq!(device.queues[2].group, None);
    assert_eq!(found.program_queues().count(), 8);
}

#[test]
fn a_machine_without_the_driver() {
    let directory = Directory::new("none");
    assert_eq!(directory.discover(), Discovery::default());
}

#[test]
fn a_machine_with_other_devices_only() {
    let directory = Directory::new("dsa");
    directory.put("bus/dsa/devices/dsa0/state", "enabled\n");
    directory.put("bus/dsa/devices/wq0.0/state", "enabled\n");
    let found = directory.discover();
    assert!(found.has_bus && found.devices.is_empty() && found.problems.is_empty());
    assert_eq!(found.dsa_devices, ["dsa0"]);
}

/// Numbers, not names: iax3 precedes iax11, and iax11 does not own wq1.0.
#[test]
fn numbers_are_shared_with_other_devices() {
    let directory = Directory::of("numbers", &model("devices=2"));
    let at = |name: &str| directory.path(&format!("bus/dsa/devices/{name}"));
    for (from, to) in [("iax0", "iax11"), ("wq0.0", "wq11.0"), ("wq0.1", "wq11.1"), ("iax1", "iax3")] {
        rename(&at(from), &at(to));
    }
    rename(&at("wq1.0"), &at("wq3.0"));
    let found = directory.discover();
    let names: Vec<_> = found.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["iax3", "iax11"]);
    let queues = |index: usize| -> Vec<_> {
        found.devices[index].queues.iter().map(|queue| queue.name.clone()).collect()
    };
    assert_eq!(queues(0), ["wq3.0"]);
    assert_eq!(queues(1), ["wq11.0", "wq11.1"]);
}

/// sysfs has symbolic links into the PCI device, which name its address.
#[test]
fn the_pci_address_is_in_the_link() {
    let directory = Directory::of("pci", &model("devices=1"));
    let real = directory.path("devices/pci0000:6a/0000:6a:02.0/iax0");
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    rename(&directory.path("bus/dsa/devices/iax0"), &real);
    let target = "../../../devices/pci0000:6a/0000:6a:02.0/iax0";
    std::os::unix::fs::symlink(target, directory.path("bus/dsa/devices/iax0")).unwrap();
    let found = directory.discover();
    assert_eq!(found.devices[0].pci_address.as_deref(), Some("0000:6a:02.0"));
    assert_eq!(found.devices[0].queues.len(), 8);
}

/// Generation 1 has no iaa_cap, older kernels no driver_name and no cdev_major: no problem.
#[test]
fn missing_attributes_of_older_kernels_are_accepted() {
    let model = model("devices=1");
    for queue in 0..8 {
        for attribute in ["driver_name", "prs_disable", "ats_disable", "enqcmds_retries", "occupancy"] {
            model.remove(&format!("bus/dsa/devices/wq0.{queue}/{attribute}"));
        }
    }
    for attribute in ["cdev_major", "event_log_size", "errors"] {
        model.remove(&format!("bus/dsa/devices/iax0/{attribute}"));
    }
    let found = discover(&model);
    assert_eq!(found.problems, []);
    let queue = &found.devices[0].queues[0];
    assert_eq!((queue.driver.as_deref(), queue.driver_name()), (None, "user"));
    assert_eq!(found.devices[0].capabilities.analytics, 0);
}

#[test]
fn broken_attributes_are_reported_and_the_rest_is_read() {
    let model = model("devices=3");
    model.set("bus/dsa/devices/iax0/state", "confused");
    model.remove("bus/dsa/devices/iax1/version");
    model.set("bus/dsa/devices/iax2/max_groups", "many");
    model.set("bus/dsa/devices/iax2/errors", "0x1 0x0 0x0 0x0");
    model.set("bus/dsa/devices/wq2.0/mode", "both");
    model.set("bus/dsa/devices/wq2.1/size", "-7");
    model.set("bus/dsa/devices/wq2.2/priority", "99999999999");
    let directory = Directory::of("broken", &model);
    let found = directory.discover();
    assert_eq!(found.devices.len(), 1);
    let device = &found.devices[0];
    assert_eq!((device.name.as_str(), device.groups_max), ("iax2", 0));
    assert!(device.has_software_error());
    assert_eq!((device.queues.len(), device.queues[0].name.as_str()), (7, "wq2.1"));
    let problems: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    for part in [
        "iax0/state: \"confused\" is not understood",
        "iax1/version: cannot be read",
        "iax2/max_groups: \"many\" is not understood",
        "wq2.0/mode: \"both\" is not understood",
        "wq2.1/size: \"-7\" is not understood",
        "wq2.2/priority: \"99999999999\" is not understood",
    ] {
        assert!(
            problems.iter().any(|problem| problem.ends_with(part) || problem.contains(part)),
            "{part}: {problems:?}"
        );
    }
    assert_eq!(problems.len(), 6, "{problems:?}");
}

/// Bytes that are not text, an attribute that is a directory, an empty one.
#[test]
fn rubbish_is_no_panic() {
    let directory = Directory::of("rubbish", &model("devices=1"));
    fs::write(directory.path("bus/dsa/devices/iax0/max_engines"), [0xff, 0xfe, 0]).unwrap();
    directory.put("bus/dsa/devices/wq0.3/type", "");
    fs::remove_file(directory.path("bus/dsa/devices/iax0/gen_cap")).unwrap();
    fs::create_dir(directory.path("bus/dsa/devices/iax0/gen_cap")).unwrap();
    directory.put("bus/dsa/devices/iax/state", "enabled");
    directory.put("bus/dsa/devices/iaxx1/state", "enabled");
    let found = directory.discover();
    assert_eq!(found.devices.len(), 1);
    assert_eq!((found.devices[0].queues.len(), found.problems.len()), (7, 3), "{:?}", found.problems);
}

#[test]
fn writing_goes_to_files_that_exist() {
    let directory = Directory::of("write", &model("devices=1"));
    let tree = Files::new(&directory.0);
    tree.write("bus/dsa/devices/wq0.0/size", "7").unwrap();
    assert_eq!(tree.read("bus/dsa/devices/wq0.0/size").unwrap(), "7");
    let error = tree.write("bus/dsa/devices/wq0.0/wheels", "4").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

mod any_text {
    use std::collections::BTreeMap;
    use std::io;

    use idxd::emulated::EmulateSpec;
    use idxd::sysfs::{plan, Configuration, Driver, Layout};
    use proptest::prelude::*;

    use super::*;

    /// Attributes, some with arbitrary content.
    struct Odd {
        files: BTreeMap<String, String>,
        link: Option<String>,
    }

    impl Tree for Odd {
        fn read(&self, path: &str) -> io::Result<String> {
            self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn write(&self, _path: &str, _value: &str) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }

        fn list(&self, directory: &str) -> io::Result<Vec<String>> {
            let inside = format!("{directory}/");
            let below = self.files.keys().filter_map(|path| path.strip_prefix(&inside));
            let mut names: Vec<String> =
                below.map(|rest| rest.split('/').next().unwrap_or_default().to_owned()).collect();
            names.dedup();
            Ok(names)
        }

        fn link(&self, _path: &str) -> Option<String> {
            self.link.clone()
        }
    }

    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            2 => any::<u64>().prop_map(|number| number.to_string()),
            2 => any::<i32>().prop_map(|number| number.to_string()),
            1 => any::<u64>().prop_map(|number| format!("{number:#x}")),
            1 => prop::sample::select(vec!["enabled", "disabled", "shared", "dedicated", "user", "kernel", "0", ""])
                .prop_map(str::to_owned),
            1 => "[0-9a-fx,+-]{0,80}",
            2 => "\\PC{0,40}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn attributes_of_any_text_are_devices_or_problems(
            changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..60),
            renamed in prop::collection::vec((any::<prop::sample::Index>(), "(iax|wq|engine|group)[0-9.+-]{0,12}"), 0..4),
            link in prop::option::of("[./0-9a-f:]{0,60}"),
            queues in 1u32..9,
        ) {
            let whole = model("devices=2,queues=4,generation=2,mode=shared");
            let mut files: BTreeMap<String, String> = whole.files().into_iter().collect();
            let paths: Vec<String> = files.keys().cloned().collect();
            for (at, value) in changes {
                files.insert(at.get(&paths).clone(), value);
            }
            for (at, name) in renamed {
                let path = at.get(&paths);
                let value = files.remove(path).unwrap_or_default();
                let parts: Vec<&str> = path.split('/').collect();
                let last = parts[parts.len() - 1];
                files.insert(format!("bus/dsa/devices/{name}/{last}"), value);
            }
            let found = discover(&Odd { files, link });
            prop_assert!(found.has_bus);
            let layout = Layout {
                queues,
                engines: 0,
                mode: QueueMode::Shared,
                kind: QueueType::User,
                label: "uzswap".to_owned(),
                priority: 10,
                threshold: 0,
                block_on_fault: None,
                transfer_max: None,
            };
            for device in &found.devices {
                let wanted = [Configuration::of(device)];
                let same = plan(&[device], &wanted, &Driver::default());
                prop_assert!(same.iter().all(|write| write.device == device.name));
                if let Ok(wanted) = layout.on(device) {
                    prop_assert_eq!(wanted.queues.len(), queues as usize);
                    plan(&[device], &[wanted], &Driver::default());
                }
            }
        }

        #[test]
        fn any_text_is_a_specification_or_an_error(
            parts in prop::collection::vec(
                ("(sockets|devices|engines|queues|generation|mode|threshold|run|work|latency_ns|clock|seed|faults|x)?", value()),
                0..5,
            ),
            odds in "(lost|page|hardware|halt|retry|slow)?:[0-9.eNaInf+-]{0,8}(/slow:0.5)?",
        ) {
            let text: Vec<String> = parts.iter().map(|(key, value)| format!("{key}={value}")).collect();
            for text in [text.join(","), format!("faults={odds}"), format!("work=timed:{odds}")] {
                if let Ok(spec) = text.parse::<EmulateSpec>() {
                    prop_assert!((1..=8).contains(&spec.queues) && (1..=8).contains(&spec.sockets), "{}", text);
                    prop_assert!(spec.threshold <= spec.queue_size(), "{}", text);
                }
            }
        }
    }
}
