//! The devices of this machine.

use std::path::Path;

use idxd::sysfs::{discover, Files, QueueMode, QueueType, Tree};
use idxd::Portal;

use crate::device::{Device, Port};

/// What was found.
pub(crate) struct Found {
    /// Devices with the queues that could be opened.
    pub devices: Vec<Device>,
    /// Why there are not more.
    pub refusals: Vec<String>,
}

/// Opens every queue that this process may use.
pub(crate) fn open() -> Found {
    open_below(&Files::system(), Path::new("/dev"))
}

fn open_below(tree: &dyn Tree, dev: &Path) -> Found {
    let discovery = discover(tree);
    let mut found = Found { devices: Vec::new(), refusals: Vec::new() };
    for device in &discovery.devices {
        let mut queues = Vec::new();
        // Queues without a type are not configured: nothing to complain about.
        for queue in device.queues.iter().filter(|queue| queue.kind != QueueType::None) {
            match idxd::real::open(dev, device, queue) {
                Ok(portal) => queues.push(Port {
                    name: queue.name.clone(),
                    entries: match queue.mode {
                        QueueMode::Dedicated => queue.size,
                        QueueMode::Shared => queue.threshold,
                    }
                    .max(1),
                    blocks_on_fault: queue.block_on_fault,
                    portal: Box::new(portal) as Box<dyn Portal>,
                }),
                Err(refusal) => found.refusals.push(refusal.to_string()),
            }
        }
        if !queues.is_empty() {
            found.devices.push(Device {
                name: device.name.clone(),
                id: device.number,
                package: device.package.unwrap_or(0) as usize,
                has_header_generation: device.capabilities.header_generation(),
                queues,
            });
        }
    }
    if found.devices.is_empty() && found.refusals.is_empty() {
        found.refusals.push(if discovery.devices.is_empty() {
            "this machine has no IAA device".to_owned()
        } else {
            "no work queue is configured (`uzswap iaa configure` does that)".to_owned()
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use idxd::sysfs::Model;

    /// Configured queues without device files are refused, each with its reason; what is not configured is not named.
    #[test]
    fn why_there_is_no_device() {
        let reasons = |model: &Model| {
            let found = open_below(model, Path::new("/no/such/directory"));
            assert!(found.devices.is_empty());
            found.refusals
        };
        let none = reasons(&Model::default());
        assert_eq!(none, ["this machine has no IAA device"]);
        let fresh = reasons(&Model::unconfigured(&"devices=2".parse().unwrap()));
        assert!(fresh.len() == 1 && fresh[0].contains("configure"), "{fresh:?}");
        let model = Model::new(&"devices=2,queues=2".parse().unwrap());
        model.write("bus/dsa/devices/iax0/driver/unbind", "iax0").unwrap();
        model.set("bus/dsa/devices/wq1.1/type", "kernel");
        let refused = reasons(&model);
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].contains("/no/such/directory/iax/wq1.0"), "{refused:?}");
        assert!(refused[1].contains("wq1.1 is the kernel's"), "{refused:?}");
    }
}
