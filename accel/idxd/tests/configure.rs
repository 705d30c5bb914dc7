//! Configuring devices: the writes, and that a failure at any write restores everything.

use idxd::sysfs::{
    apply, choose, discover, plan, ApplyError, Choice, Configuration, Device, Driver, Effect, Layout, Model,
    QueueMode, QueueType, State, Tree, Undo,
};

fn layout() -> Layout {
    Layout {
        queues: 2,
        engines: 0,
        mode: QueueMode::Shared,
        kind: QueueType::User,
        label: "uzswap".to_owned(),
        priority: 10,
        threshold: 0,
        block_on_fault: None,
        transfer_max: None,
    }
}

fn kernel_layout() -> Layout {
    Layout { mode: QueueMode::Dedicated, kind: QueueType::Kernel, label: "iaa_crypto".to_owned(), ..layout() }
}

fn driver() -> Driver {
    let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Driver { attributes: vec![attribute("sync_mode", "sync"), attribute("verify_compress", "1")] }
}

fn configurations(model: &Model, choice: &Choice, layout: &Layout) -> Vec<Configuration> {
    let found = discover(model);
    choose(&found.devices, choice).unwrap().iter().map(|device| layout.on(device).unwrap()).collect()
}

fn configure(model: &Model, layout: &Layout, driver: &Driver) -> Result<usize, ApplyError> {
    let wanted = configurations(model, &Choice::All, layout);
    let mut writes = 0;
    apply(model, &discover(model), &wanted, driver, &mut |_| writes += 1)?;
    Ok(writes)
}

/// Devices without the ineffective settings that unused queues keep from an earlier use.
fn devices(model: &Model) -> Vec<Device> {
    let mut devices = discover(model).devices;
    for queue in devices.iter_mut().flat_map(|device| &mut device.queues) {
        queue.driver = (queue.kind != QueueType::None).then(|| queue.driver_name().to_owned());
    }
    devices
}

#[test]
fn a_fresh_machine_gets_shared_queues_for_programs() {
    let model = Model::unconfigured(&"sockets=2,devices=2,block_on_fault=1".parse().unwrap());
    configure(&model, &layout(), &Driver::default()).unwrap();
    let found = discover(&model);
    assert_eq!(found.problems, []);
    assert_eq!(found.program_queues().count(), 8);
    for device in &found.devices {
        assert_eq!((device.state, device.engines_in(0)), (State::Enabled, 8));
        for queue in &device.queues[..2] {
            assert_eq!((queue.size, queue.threshold, queue.priority), (64, 64, 10));
            assert_eq!((queue.mode, queue.label.as_str()), (QueueMode::Shared, "uzswap"));
            assert!(queue.block_on_fault && queue.minor.is_some());
        }
        assert!(device.queues[2..].iter().all(|queue| queue.state == State::Disabled && queue.size == 0));
    }
}

#[test]
fn the_setup_script_of_the_kernel_series() {
    let model = Model::new(&"sockets=2,devices=4,mode=shared".parse().unwrap());
    let wanted = configurations(&model, &Choice::PerPackage(1), &kernel_layout());
    let names: Vec<_> = wanted.iter().map(|wanted| wanted.device.as_str()).collect();
    assert_eq!(names, ["iax0", "iax4"], "the first of each socket");
    apply(&model, &discover(&model), &wanted, &driver(), &mut |_| {}).unwrap();
    let found = discover(&model);
    let queue = &found.device("iax4").unwrap().queues[1];
    assert_eq!(
        (queue.mode, queue.size, queue.threshold, queue.kind),
        (QueueMode::Dedicated, 64, 0, QueueType::Kernel)
    );
    assert_eq!(
        (queue.driver_name(), queue.label.as_str(), queue.state),
        ("crypto", "iaa_crypto", State::Enabled)
    );
    assert_eq!(model.read("bus/dsa/drivers/crypto/sync_mode").unwrap(), "sync");
    assert_eq!(found.device("iax1").unwrap().queues[0].kind, QueueType::User);
    assert_eq!(found.program_queues().count(), 6);
}

#[test]
fn engines_and_queues_that_are_not_used_are_detached() {
    let model = Model::new(&"queues=4".parse().unwrap());
    configure(&model, &Layout { queues: 1, engines: 3, ..layout() }, &Driver::default()).unwrap();
    let device = &discover(&model).devices[0];
    assert_eq!(device.engines_in(0), 3);
    assert_eq!(device.engines.iter().filter(|engine| engine.group.is_none()).count(), 5);
    assert_eq!(device.queues[0].size, 128);
    assert!(device.queues[1..].iter().all(|queue| queue.size == 0 && queue.kind == QueueType::None));
}

/// A disabled device has left-overs of an earlier configuration, whose entries would not suffice.
#[test]
fn left_overs_are_given_up_first() {
    let model = Model::unconfigured(&"devices=1".parse().unwrap());
    for (attribute, value) in
        [("type", "kernel"), ("name", "old"), ("size", "128"), ("group_id", "3"), ("threshold", "128")]
    {
        model.write(&format!("bus/dsa/devices/wq0.7/{attribute}"), value).unwrap();
    }
    configure(&model, &layout(), &Driver::default()).unwrap();
    let device = &discover(&model).devices[0];
    assert_eq!((device.queues[7].size, device.queues[7].group), (0, None));
    assert_eq!((device.queues[7].label.as_str(), device.queues[7].threshold), ("", 0));
    assert_eq!(device.queues[1].state, State::Enabled);
}

/// A second configuration changes nothing, and works as well.
#[test]
fn it_can_be_repeated() {
    let model = Model::unconfigured(&"devices=2,generation=2".parse().unwrap());
    configure(&model, &layout(), &Driver::default()).unwrap();
    let once = model.files();
    configure(&model, &layout(), &Driver::default()).unwrap();
    assert_eq!(once, model.files());
}

/// A dry run prints exactly the writes that are done.
#[test]
fn the_plan_is_carried_out_as_shown() {
    let model = Model::new(&"devices=2,mode=shared".parse().unwrap());
    let wanted = configurations(&model, &Choice::All, &kernel_layout());
    let found = discover(&model);
    let devices: Vec<&Device> = found.devices.iter().collect();
    let planned = plan(&devices, &wanted, &driver());
    let mut done = Vec::new();
    apply(&model, &found, &wanted, &driver(), &mut |write| done.push(write.clone())).unwrap();
    assert_eq!(planned, done);
    let lines: Vec<String> = planned.iter().map(|write| write.shell(&model)).collect();
    assert_eq!(lines[0], "echo wq0.0 > /sys/bus/dsa/devices/wq0.0/driver/unbind");
    assert_eq!(lines[1], "echo iax0 > /sys/bus/dsa/devices/iax0/driver/unbind");
    assert!(lines.contains(&"echo 64 > /sys/bus/dsa/devices/wq1.1/size".to_owned()));
    assert!(lines.contains(&"echo sync > /sys/bus/dsa/drivers/crypto/sync_mode".to_owned()));
    assert_eq!(lines.last().unwrap(), "echo wq1.1 > /sys/bus/dsa/drivers/crypto/bind");
    let position = |line: &str| lines.iter().position(|there| there == line).unwrap();
    assert!(
        position("echo iax0 > /sys/bus/dsa/drivers/idxd/bind")
            < position("echo wq0.0 > /sys/bus/dsa/drivers/crypto/bind")
    );
}

/// Each write of a configuration fails once, with each of several starting points.
#[test]
fn a_failure_at_any_write_is_undone() {
    type Start = (&'static str, fn() -> Model);
    let starts: [Start; 4] = [
        ("fresh", || Model::unconfigured(&"devices=2".parse().unwrap())),
        ("for programs", || {
            Model::new(&"devices=2,queues=3,mode=shared,threshold=7,block_on_fault=1".parse().unwrap())
        }),
        ("for the kernel", || {
            let model = Model::unconfigured(&"devices=2,generation=2".parse().unwrap());
            configure(&model, &Layout { queues: 4, engines: 5, ..kernel_layout() }, &driver()).unwrap();
            model
        }),
        ("half", || {
            let model = Model::new(&"devices=2,queues=2".parse().unwrap());
            model.write("bus/dsa/devices/wq1.1/driver/unbind", "wq1.1").unwrap();
            model.write("bus/dsa/devices/iax0/driver/unbind", "iax0").unwrap();
            for (attribute, value) in [("size", "16"), ("group_id", "2"), ("type", "user"), ("name", "mine")]
            {
                model.write(&format!("bus/dsa/devices/wq0.5/{attribute}"), value).unwrap();
            }
            model
        }),
    ];
    for (name, start) in starts {
        for (layout, driver) in [(layout(), Driver::default()), (kernel_layout(), driver())] {
            let writes = configure(&start(), &layout, &driver).unwrap();
            assert!(writes > 40, "{writes}");
            for index in 0..writes {
                let model = start();
                let before = devices(&model);
                let settings = model.read("bus/dsa/drivers/crypto/verify_compress").unwrap();
                model.fail_write(index, libc::EIO);
                let error = configure(&model, &layout, &driver).unwrap_err();
                assert_ne!(error.undo, Undo::Failed(Vec::new()));
                assert!(matches!(error.undo, Undo::Done | Undo::NotNeeded), "{name}, write {index}: {error}");
                assert_eq!(devices(&model), before, "{name}, write {index}: {error}");
                assert_eq!(
                    model.read("bus/dsa/drivers/crypto/verify_compress").unwrap(),
                    settings,
                    "{name} {index}"
                );
                if index % 7 == 0 {
                    configure(&model, &layout, &driver).unwrap();
                }
            }
        }
    }
}

/// An unchosen device is disabled with its queues before the driver's attributes are set, which the
/// kernel refuses while any queue is bound; a later failure enables it again.
#[test]
fn devices_that_are_not_chosen_are_disabled_and_brought_back() {
    let start = || {
        let model = Model::unconfigured(&"devices=3,generation=2".parse().unwrap());
        configure(&model, &Layout { queues: 4, ..kernel_layout() }, &driver()).unwrap();
        model
    };
    let attempt = |model: &Model| {
        let found = discover(model);
        let mut wanted = configurations(model, &Choice::PerPackage(1), &kernel_layout());
        wanted.extend(found.devices[1..].iter().map(Configuration::disabled));
        let (mut writes, driver) = (0, Driver::with_defaults(model, &[]));
        apply(model, &found, &wanted, &driver, &mut |_| writes += 1).map(|()| writes)
    };
    let model = start();
    let writes = attempt(&model).unwrap();
    let after = devices(&model);
    let states: Vec<State> = after.iter().map(|device| device.state).collect();
    assert_eq!(states, [State::Enabled, State::Disabled, State::Disabled]);
    assert!(after[1..].iter().flat_map(|device| &device.queues).all(|queue| queue.state == State::Disabled));
    assert_eq!(model.read("bus/dsa/drivers/crypto/verify_compress").unwrap(), "0");
    for index in 0..writes {
        let model = start();
        let before = devices(&model);
        model.fail_write(index, libc::EIO);
        let error = attempt(&model).unwrap_err();
        assert!(matches!(error.undo, Undo::Done | Undo::NotNeeded), "write {index}: {error}");
        assert_eq!(devices(&model), before, "write {index}: {error}");
        assert_eq!(model.read("bus/dsa/drivers/crypto/verify_compress").unwrap(), "1");
    }
}

/// Defaults are those of the series; attributes are set by the driver's names.
#[test]
fn the_drivers_defaults_and_its_older_names() {
    let model = Model::new(&"devices=1".parse().unwrap());
    let at = |name: &str| format!("bus/dsa/drivers/crypto/{name}");
    let of = |own: &[(&str, &str)]| {
        let own: Vec<_> = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Driver::with_defaults(&model, &own)
            .attributes
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), [""; 0], "all are at their defaults");
    for (name, value) in [("verify_compress", "1"), ("sync_mode", "sync"), ("distribute_comps", "N\n")] {
        model.set(&at(name), value);
    }
    assert_eq!(of(&[]), ["verify_compress=0", "sync_mode=async", "distribute_comps=1"]);
    assert_eq!(of(&[("sync_mode", "sync")]), ["sync_mode=sync", "verify_compress=0", "distribute_comps=1"]);
    // The driver before the series.
    for name in ["g_comp_wqs_per_iaa", "distribute_comps", "distribute_decomps"] {
        model.remove(&at(name));
    }
    assert_eq!(of(&[]), ["verify_compress=0", "sync_mode=async"]);
    // And that of its early versions.
    model.set(&at("g_wqs_per_iaa"), "3");
    model.set(&at("g_consec_descs_per_gwq"), "1");
    assert_eq!(of(&[]), ["verify_compress=0", "sync_mode=async", "g_wqs_per_iaa=1"]);
    assert_eq!(
        of(&[("g_comp_wqs_per_iaa", "2")]),
        ["g_wqs_per_iaa=2", "verify_compress=0", "sync_mode=async"]
    );
    // A name that no driver has stays for the kernel to refuse.
    assert_eq!(of(&[("wheels", "4")])[0], "wheels=4");
}

/// An undo fails as well: the message lists the settings that stay changed.
#[test]
fn steps_that_cannot_be_undone_are_named() {
    let model = Model::new(&"devices=1,queues=2,mode=shared".parse().unwrap());
    let wanted = configurations(&model, &Choice::All, &kernel_layout());
    let found = discover(&model);
    // The device loses SVA in the middle: neither the new nor the old configuration can be enabled.
    let error = apply(&model, &found, &wanted, &Driver::default(), &mut |write| {
        if write.effect == Effect::Enable {
            model.set("bus/dsa/devices/iax0/pasid_enabled", "0");
            model.set("bus/dsa/devices/wq0.0/name", "");
        }
    })
    .unwrap_err();
    assert!(matches!(&error.undo, Undo::Failed(problems) if !problems.is_empty()), "{error}");
    let text = error.to_string();
    assert!(text.contains("Not everything could be put back") && text.contains("0x80040000"), "{text}");
}

#[test]
fn refusals_carry_the_devices_reason_and_the_fix() {
    let model = Model::unconfigured(&"devices=1".parse().unwrap());
    let mut wanted = configurations(&model, &Choice::All, &layout());
    wanted[0].queues[0].driver = Some("dmaengine".to_owned());
    wanted[0].queues[1].driver = Some("wheels".to_owned());
    let error = apply(&model, &discover(&model), &wanted[..], &Driver::default(), &mut |_| {});
    // The model has no driver of the second name; the first queue is bound to the driver it names.
    let text = error.unwrap_err().to_string();
    assert!(text.contains("wheels/bind"), "{text}");
    assert!(text.contains("Everything was put back as it was"), "{text}");

    model.fail_write(0, libc::EACCES);
    let text = configure(&model, &layout(), &Driver::default()).unwrap_err().to_string();
    assert!(text.contains("use sudo") && text.contains("Nothing was changed"), "{text}");
    model.fail_write(0, libc::EROFS);
    let text = configure(&model, &layout(), &Driver::default()).unwrap_err().to_string();
    assert!(text.contains("container"), "{text}");
}

#[test]
fn impossible_layouts_are_refused_before_anything_is_written() {
    let model = Model::unconfigured(&"sockets=2,devices=2,engines=4".parse().unwrap());
    let found = discover(&model);
    let device = &found.devices[0];
    let refused = |layout: Layout, part: &str| {
        let text = layout.on(device).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    };
    refused(Layout { queues: 9, ..layout() }, "it has 1 to 8");
    refused(Layout { queues: 0, ..layout() }, "it has 1 to 8");
    refused(Layout { engines: 5, ..layout() }, "it has 4");
    refused(Layout { threshold: 65, ..layout() }, "threshold 65");
    refused(Layout { priority: 0, ..layout() }, "priority 0");
    refused(Layout { label: String::new(), ..layout() }, "no name");
    refused(Layout { block_on_fault: Some(true), ..layout() }, "block_on_fault");
    let chosen = |choice: Choice| choose(&found.devices, &choice).map(|devices| devices.len());
    assert_eq!(chosen(Choice::PerPackage(2)), Ok(4));
    let error = chosen(Choice::PerPackage(3)).unwrap_err().to_string();
    assert!(error.contains("has 2 devices, 3 are wanted"), "{error}");
    assert_eq!(chosen(Choice::Named(vec!["iax1".into(), "iax1".into()])), Ok(1));
    let error = chosen(Choice::Named(vec!["iax9".into()])).unwrap_err().to_string();
    assert!(error.contains("iax0, iax1, iax2, iax3"), "{error}");

    let mut fixed = device.clone();
    fixed.configurable = false;
    let text = layout().on(&fixed).unwrap_err().to_string();
    assert!(text.contains("cannot be configured by software"), "{text}");
    let mut alone = device.clone();
    alone.pasid_enabled = false;
    let text = layout().on(&alone).unwrap_err().to_string();
    assert!(text.contains("intel_iommu=on,sm_on"), "{text}");
    assert!(kernel_layout().on(&alone).is_ok());
}

/// Kernels before 6.7 lack driver_name, and others lack more: missing attributes are not written.
#[test]
fn attributes_that_a_kernel_lacks_are_not_written() {
    let model = Model::unconfigured(&"devices=1".parse().unwrap());
    for queue in 0..8 {
        for attribute in ["driver_name", "prs_disable", "ats_disable", "enqcmds_retries"] {
            model.remove(&format!("bus/dsa/devices/wq0.{queue}/{attribute}"));
        }
    }
    configure(&model, &layout(), &Driver::default()).unwrap();
    assert_eq!(discover(&model).program_queues().count(), 2);
}

/// The model refuses the writes that the kernel refuses.
#[test]
fn the_model_has_the_kernels_rules() {
    let model = Model::new(&"devices=1,queues=2".parse().unwrap());
    let refused = |path: &str, value: &str, errno: i32| {
        let error = model.write(&format!("bus/dsa/{path}"), value).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno), "{path} {value}: {error}");
    };
    refused("devices/wq0.0/size", "1", libc::EPERM);
    refused("devices/wq0.0/threshold", "1", libc::ENXIO);
    refused("devices/wq0.0/state", "enabled", libc::EPERM);
    refused("devices/wq0.0/wheels", "4", libc::ENOENT);
    refused("devices/engine0.0/group_id", "1", libc::EPERM);
    refused("drivers/idxd/bind", "iax0", libc::ENXIO);
    refused("drivers/idxd/bind", "iax7", libc::ENODEV);
    refused("drivers/user/bind", "wq0.0", libc::EBUSY);
    refused("drivers/crypto/unbind", "wq0.0", libc::ENODEV);
    model.write("bus/dsa/devices/iax0/driver/unbind", "iax0").unwrap();
    assert_eq!(discover(&model).devices[0].queues[0].size, 0, "disabling resets");
    refused("devices/wq0.0/driver/unbind", "wq0.0", libc::ENOENT);
    refused("drivers/idxd/bind", "iax0", libc::EINVAL);
    refused("drivers/user/bind", "wq0.0", libc::EPERM);
    model.write("bus/dsa/devices/wq0.0/size", "100").unwrap();
    refused("devices/wq0.1/size", "29", libc::EINVAL);
    refused("devices/wq0.1/name", "x", libc::EPERM);
    refused("devices/wq0.0/block_on_fault", "0", libc::EOPNOTSUPP);
    refused("devices/wq0.0/priority", "16", libc::EINVAL);
    model.write("bus/dsa/devices/wq0.0/mode", "dedicated").unwrap();
    refused("devices/wq0.0/threshold", "1", libc::EINVAL);
    model.write("bus/dsa/devices/wq0.0/max_transfer_size", "3000000").unwrap();
    assert_eq!(model.read("bus/dsa/devices/wq0.0/max_transfer_size").unwrap(), "4194304");
    refused("devices/iax0/version", "0x300", libc::EACCES);
}

mod walks {
    use proptest::prelude::*;

    use super::*;

    fn any_layout() -> impl Strategy<Value = Layout> {
        (1u32..=8, 0u32..=8, any::<bool>(), any::<bool>(), 1u32..=15, 0u32..=16, any::<Option<bool>>())
            .prop_map(|(queues, engines, is_shared, is_kernel, priority, threshold, block_on_fault)| Layout {
                queues,
                engines,
                mode: if is_shared { QueueMode::Shared } else { QueueMode::Dedicated },
                kind: if is_kernel { QueueType::Kernel } else { QueueType::User },
                label: if is_kernel { "iaa_crypto" } else { "uzswap" }.to_owned(),
                priority,
                threshold,
                block_on_fault,
                transfer_max: threshold.is_multiple_of(2).then_some(1 << 21 << (threshold % 4)),
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Successive configurations on the same devices, some of which fail somewhere: those
        /// change nothing, the others leave exactly the requested state.
        #[test]
        fn from_anything_to_anything(
            steps in prop::collection::vec((any_layout(), any::<Option<prop::sample::Index>>(), any::<bool>()), 1..8),
        ) {
            let model = Model::unconfigured(&"devices=2,generation=2,block_on_fault=1".parse().unwrap());
            for (layout, failure, all) in steps {
                let found = discover(&model);
                let choice = if all { Choice::All } else { Choice::Named(vec!["iax1".to_owned()]) };
                let chosen = choose(&found.devices, &choice).unwrap();
                let Ok(wanted) = chosen.iter().map(|device| layout.on(device)).collect::<Result<Vec<_>, _>>() else {
                    // Thresholds above the size: refused before any write.
                    continue;
                };
                let count = plan(&chosen, &wanted, &Driver::default()).len();
                if let Some(index) = failure {
                    let before = devices(&model);
                    model.fail_write(index.index(count), libc::EIO);
                    let error = apply(&model, &found, &wanted, &Driver::default(), &mut |_| {}).unwrap_err();
                    prop_assert!(matches!(error.undo, Undo::Done | Undo::NotNeeded), "{}", error);
                    prop_assert_eq!(devices(&model), before);
                    continue;
                }
                apply(&model, &found, &wanted, &Driver::default(), &mut |_| {}).unwrap();
                let after = discover(&model);
                for wanted in &wanted {
                    let device = after.device(&wanted.device).unwrap();
                    prop_assert_eq!(device.command_status, 0);
                    let present = Configuration::of(device);
                    prop_assert_eq!(&present.engines, &wanted.engines);
                    prop_assert_eq!(present.queues.len(), wanted.queues.len());
                    for (present, wanted) in present.queues.iter().zip(&wanted.queues) {
                        prop_assert!(present.is_enabled() && present.size == wanted.size);
                        prop_assert_eq!(
                            (present.mode, present.kind, present.priority, present.threshold, present.block_on_fault),
                            (wanted.mode, wanted.kind, wanted.priority, wanted.threshold, wanted.block_on_fault)
                        );
                    }
                }
            }
        }
    }
}
