//! `uzswap iaa` as users run it: on emulated devices, on trees of files and on this machine.

mod support;

use std::fs;
use std::path::Path;

use idxd::emulated::EmulateSpec;
use idxd::sysfs::Model;
use serde_json::Value;
use support::{uzswap, Ran, Scratch, Started};

const EMULATED: &str = "sockets=2,devices=2,engines=8,queues=2,generation=1";

fn iaa(arguments: &[&str]) -> Ran {
    Ran::of(uzswap().arg("iaa").args(arguments))
}

fn works(arguments: &[&str]) -> String {
    let ran = iaa(arguments);
    ran.assert_status(0);
    ran.printed
}

fn prints(arguments: &[&str], parts: &[&str]) {
    iaa(arguments).assert_status(0).assert_prints(parts);
}

/// Runs a command that must fail with uzswap's failure status and a message of these parts.
fn fails(arguments: &[&str], parts: &[&str]) {
    let ran = iaa(arguments);
    ran.assert_status(125).assert_says(parts);
    assert!(ran.said.starts_with("uzswap: ") || ran.said.contains("\nuzswap: "), "{ran}");
}

fn json(arguments: &[&str]) -> Value {
    iaa(arguments).assert_status(0).json()
}

/// A directory with the files of devices as the kernel shows them.
fn model(spec: &str) -> Scratch {
    let directory = Scratch::new("iaa");
    let spec: EmulateSpec = spec.parse().unwrap();
    for (path, value) in Model::new(&spec).files() {
        directory.write(&format!("sys/{path}"), value + "\n");
    }
    directory.directory("dev/iax");
    directory
}

fn has_devices() -> bool {
    let here = Path::new("/sys/bus/dsa").exists();
    if here {
        testkit::skip!("kernel", "this machine has the idxd driver");
    }
    here
}

#[test]
fn without_devices_list_says_how_to_get_one() {
    if has_devices() {
        return;
    }
    let said = works(&["list"]);
    for part in ["no IAA device", "/sys/bus/dsa", "BIOS", "modprobe idxd", "--emulate"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(json(&["list", "--json"]), Value::Array(Vec::new()));
    for verb in [&["configure", "-d", "1", "-q", "1"][..], &["save", "-"], &["test"]] {
        fails(verb, &["--emulate"]);
    }
}

#[test]
fn devices_of_other_kinds_are_named() {
    let directory = Scratch::new("dsa");
    directory.directory("sys/bus/dsa/devices/dsa0");
    prints(&["list", "--sysfs", &directory.text("sys")], &["dsa0", "DSA"]);
}

#[test]
fn list_shows_devices_queues_and_their_users() {
    let directory = model("devices=2,queues=2,mode=shared");
    let (sys, dev) = (directory.text("sys"), directory.text("dev"));
    directory.write("dev/iax/wq0.0", "");
    let tables = works(&["list", "--sysfs", &sys, "--dev", &dev]);
    assert!(tables.contains("iax0") && tables.contains("wq1.1"), "{tables}");
    let line = |name: &str| tables.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("wq0.0").ends_with("you: yes"), "{tables}");
    assert!(line("wq0.1").contains("no user: no"), "{tables}");
    assert!(!tables.contains("wq0.2") && !tables.contains("Emulated"), "{tables}");
    prints(&["list", "--all", "--sysfs", &sys, "--dev", &dev], &["wq0.7"]);

    let devices = json(&["list", "--json", "--sysfs", &sys, "--dev", &dev]);
    let queue = &devices[0]["queues"][0];
    assert_eq!(devices.as_array().unwrap().len(), 2);
    assert_eq!(
        (&queue["dev"], &queue["mode"], &queue["size"]),
        (&"wq0.0".into(), &"shared".into(), &64.into())
    );
    assert_eq!((&queue["may_use"], &devices[0]["queues"][1]["may_use"]), (&true.into(), &false.into()));
    assert_eq!((&devices[0]["emulated"], &devices[0]["package"]), (&false.into(), &0.into()));
}

#[test]
fn a_broken_tree_is_reported_and_the_rest_shown() {
    let directory = model("devices=2");
    directory.write("sys/bus/dsa/devices/iax0/state", "odd\n");
    directory.write("sys/bus/dsa/devices/iax1/cmd_status", "0x80110000\n");
    let ran = iaa(&["list", "--sysfs", &directory.text("sys")]);
    let (said, errors) = (&ran.assert_status(0).printed, &ran.said);
    assert!(errors.contains("iax0/state: \"odd\" is not understood"), "{errors}");
    assert!(said.contains("iax1") && said.contains("intel_iommu=on,sm_on"), "{said}");
}

#[test]
fn emulated_devices_are_listed_as_such() {
    let devices = json(&["list", "--json", "--emulate", EMULATED]);
    assert_eq!(devices.as_array().unwrap().len(), 4);
    assert_eq!((&devices[3]["package"], &devices[3]["emulated"]), (&1.into(), &true.into()));
    assert_eq!(devices[3]["queues"].as_array().unwrap().len(), 2);
    assert!(works(&["list", "--emulate", EMULATED]).starts_with("Emulated"));
    fails(&["list", "--emulate", "wheels=4"], &["wheels=4", "sockets"]);
}

#[test]
fn configure_prints_or_does_the_same_writes() {
    let options = ["configure", "-d", "1", "-q", "4", "--mode", "dedicated", "--emulate", EMULATED];
    let with = |more: &[&'static str]| [&options[..], more].concat();
    let dry = works(&with(&["--dry-run"]));
    assert!(dry.lines().all(|line| line.starts_with("echo ") && line.contains(" > /sys/bus/dsa/")), "{dry}");
    assert!(dry.contains("echo 32 > /sys/bus/dsa/devices/wq0.3/size\n"), "{dry}");
    assert!(!dry.contains("iax1"), "one device a socket: {dry}");
    let planned = json(&with(&["--dry-run", "--json"]));
    let done = json(&with(&["--json"]));
    assert_eq!(planned["writes"], done["writes"]);
    assert_eq!(planned["writes"].as_array().unwrap().len(), dry.lines().count());
    assert_eq!((&planned["devices"], &planned["dry_run"]), (&Value::Null, &true.into()));
    assert_eq!(done["devices"][0]["queues"].as_array().unwrap().len(), 4);
    assert_eq!(done["devices"][2]["queues"][3]["state"], "enabled");
    assert_eq!(done["devices"][1]["queues"].as_array().unwrap().len(), 2, "left alone");
    prints(&options, &["attributes written", "wq2.3"]);
}

#[test]
fn configure_for_the_kernel_sets_its_driver_too() {
    let verb = ["configure", "-d", "all", "-q", "2", "--type", "kernel", "--emulate", EMULATED];
    let report = json(&[&verb[..], &["--driver", "sync_mode=async", "--json"]].concat());
    let queue = &report["devices"][3]["queues"][0];
    assert_eq!((&queue["type"], &queue["mode"]), (&"kernel".into(), &"dedicated".into()));
    assert_eq!((&queue["driver_name"], &queue["name"]), (&"crypto".into(), &"iaa_crypto".into()));
    let writes = report["writes"].to_string();
    assert!(writes.contains("/sys/bus/dsa/drivers/crypto/sync_mode"), "{writes}");
    assert!(!writes.contains("verify_compress"), "it has the default: {writes}");
    fails(
        &["configure", "-d", "1", "-q", "1", "--driver", "sync_mode=sync", "--emulate", EMULATED],
        &["--type kernel"],
    );
}

/// Like the setup script of the kernel's batching series: the driver gets only the chosen devices,
/// with the series' defaults, by the driver's attribute names.
#[test]
fn configure_for_the_kernel_takes_devices_away_and_sets_defaults() {
    let directory = model("sockets=2,devices=2,queues=1");
    let (sys, crypto) = (directory.text("sys"), directory.path("sys/bus/dsa/drivers/crypto"));
    for device in 0..4 {
        let path = format!("sys/bus/dsa/devices/wq{device}.0/type");
        directory.write(&path, "kernel\n");
    }
    fs::write(crypto.join("verify_compress"), "1\n").unwrap();
    fs::write(crypto.join("distribute_comps"), "Y\n").unwrap();
    fs::remove_file(crypto.join("g_comp_wqs_per_iaa")).unwrap();
    fs::write(crypto.join("g_wqs_per_iaa"), "4\n").unwrap();
    fs::write(crypto.join("g_consec_descs_per_gwq"), "2\n").unwrap();
    let dry = |more: &[&str]| {
        let verb = ["configure", "-d", "1", "-q", "2", "--type", "kernel", "--dry-run", "--sysfs", &sys];
        works(&[&verb[..], more].concat())
    };
    let written = |dry: &str, what: &str| dry.lines().filter(|line| line.contains(what)).count();
    let plan = dry(&[]);
    for device in ["iax0", "iax1", "iax2", "iax3"] {
        assert_eq!(written(&plan, &format!("/{device}/driver/unbind")), 1, "{device}: {plan}");
    }
    let enabled = plan.lines().filter(|line| line.ends_with("/drivers/idxd/bind")).count();
    assert_eq!((enabled, written(&plan, "echo iax1 >")), (2, 1), "{plan}");
    for (attribute, value) in
        [("verify_compress", "0"), ("g_wqs_per_iaa", "1"), ("g_consec_descs_per_gwq", "1")]
    {
        let line = format!("echo {value} > {}", crypto.join(attribute).display());
        assert!(plan.contains(&line), "{line}: {plan}");
    }
    assert_eq!(written(&plan, "/drivers/crypto/"), 3 + 4, "three attributes, and four queues: {plan}");
    // The newer attribute name.
    let plan = dry(&["--driver", "g_comp_wqs_per_iaa=2", "--others", "keep"]);
    assert_eq!((written(&plan, "iax1"), written(&plan, "echo 2 > ")), (0, 1), "{plan}");
    assert!(plan.contains(&format!("echo 2 > {}", crypto.join("g_wqs_per_iaa").display())), "{plan}");
    directory.write("sys/bus/dsa/devices/iax3/clients", "1\n");
    fails(
        &["configure", "-d", "1", "-q", "2", "--type", "kernel", "--sysfs", &sys],
        &["iax3 is used by 1 open file"],
    );
    // Queues for programs are kept, unless all others must go.
    let dry = |more: &[&'static str]| {
        let verb = ["configure", "-d", "1", "-q", "1", "--dry-run", "--emulate", EMULATED];
        works(&[&verb[..], more].concat())
    };
    for (more, disabled) in
        [(&[][..], 0), (&["--type", "kernel"], 0), (&["--others", "disable"], 1), (&["--others", "keep"], 0)]
    {
        assert_eq!(written(&dry(more), "iax1/driver/unbind"), disabled, "{more:?}");
    }
}

#[test]
fn impossible_wishes_name_the_cause() {
    let configure = |more: &[&'static str]| {
        let options = ["configure", "--emulate", EMULATED];
        [&options[..], more].concat()
    };
    for (options, part) in [
        (&["-d", "3", "-q", "1"][..], "socket 0 has 2 devices, 3 are wanted"),
        (&["-d", "iax7", "-q", "1"], "there is no device iax7; there are iax0, iax1, iax2, iax3"),
        (&["-d", "1", "-q", "9"], "it has 1 to 8"),
        (&["-d", "1", "-q", "2", "--threshold", "65"], "above the size 64"),
        (&["-d", "1", "-q", "1", "--block-on-fault", "yes"], "block_on_fault"),
        (&["-d", "1", "-q", "1", "--type", "none"], "choose user or kernel"),
    ] {
        fails(&configure(options), &[part]);
    }
    iaa(&configure(&["-d", "some", "-q", "1"])).assert_status(125);
}

#[test]
fn devices_in_use_are_not_taken_away() {
    let directory = model("devices=1,queues=1");
    let (sys, at) = (directory.text("sys"), "sys/bus/dsa/devices");
    directory.write(&format!("{at}/iax0/clients"), "2\n");
    let options = ["configure", "-d", "1", "-q", "1", "--sysfs", &sys];
    fails(&options, &["iax0 is used by 2 open files", "--force"]);
    directory.write(&format!("{at}/iax0/clients"), "0\n");
    directory.write(&format!("{at}/wq0.0/type"), "kernel\n");
    directory.directory("sys/module/zswap/parameters");
    directory.write("sys/module/zswap/parameters/compressor", "deflate-iaa-dynamic\n");
    fails(&options, &["zswap", "echo lzo"]);
    fs::remove_dir_all(directory.path("sys/bus/dsa/drivers/user")).unwrap();
    fails(&options, &["modprobe idxd"]);
}

/// Plain files do not react: the first unbinding has no file to write to, and nothing changes.
#[test]
fn a_tree_that_does_not_answer_is_left_as_it_was() {
    let directory = model("devices=1,queues=1");
    let sys = directory.text("sys");
    let before = works(&["list", "--all", "--json", "--sysfs", &sys]);
    fails(
        &["configure", "-d", "1", "-q", "1", "--sysfs", &sys],
        &["wq0.0/driver/unbind", "Nothing was changed"],
    );
    assert_eq!(works(&["list", "--all", "--json", "--sysfs", &sys]), before);
}

#[test]
fn profiles_are_saved_and_loaded() {
    let directory = Scratch::new("profile");
    let file = directory.text("profile.json");
    prints(&["save", &file, "--emulate", EMULATED], &["iax0, iax1, iax2, iax3 saved to"]);
    let saved = fs::read_to_string(&file).unwrap();
    assert_eq!(saved, works(&["save", "-", "--emulate", EMULATED]));
    assert!(saved.contains("\"grouped_workqueues\"") && saved.contains("\"grouped_engines\""), "{saved}");
    let summary = json(&["save", &file, "--json", "--emulate", EMULATED]);
    assert_eq!(summary["devices"].as_array().unwrap().len(), 4);

    let other = "sockets=2,devices=2,queues=8,mode=shared";
    let report = json(&["load", &file, "--json", "--emulate", other]);
    let queues = report["devices"][1]["queues"].as_array().unwrap();
    assert_eq!((queues.len(), &queues[1]["size"], &queues[1]["mode"]), (2, &64.into(), &"dedicated".into()));
    assert_eq!(queues[1]["state"], "enabled");
    let report = json(&["load", &file, "--no-enable", "--json", "--emulate", other]);
    assert_eq!(report["devices"][1]["queues"][1]["state"], "disabled");
    prints(&["load", &file, "--dry-run", "--emulate", other], &["wq3.1/size"]);

    fails(&["load", &file, "--emulate", "devices=2"], &["there is no device iax2"]);
    fails(&["load", "/no/such/file", "--emulate", EMULATED], &["/no/such/file"]);
    directory.write("bad.json", "[{\"dev\":\"iax0\",\"groups\":7}]");
    fails(&["load", &directory.text("bad.json"), "--emulate", EMULATED], &["bad.json", "line 1"]);
    fails(&["save", "/no/such/file", "--emulate", EMULATED], &["cannot write"]);
}

#[test]
fn a_profile_can_come_from_a_pipe() {
    let saved = works(&["save", "-", "--emulate", "devices=1"]);
    let load = ["iaa", "load", "-", "--emulate", "devices=1", "--json"];
    let mut load = Started::new(uzswap().args(load));
    load.tell(&saved);
    let report = load.end().assert_status(0).json();
    assert_eq!(report["devices"][0]["queues"][0]["state"], "enabled");
}

#[test]
fn every_queue_is_tested() {
    for (spec, modes) in
        [("devices=2,queues=2,generation=2,mode=shared,threshold=4", 3), ("devices=1,threads", 2)]
    {
        let report = json(&["test", "--pages", "64", "--json", "--emulate", spec]);
        assert_eq!((&report["passed"], &report["emulated"]), (&true.into(), &true.into()));
        assert!(report["machine"]["kernel"].is_string() && report["devices"].is_array());
        for result in report["results"].as_array().unwrap() {
            assert_eq!((&result["passed"], &result["error"]), (&true.into(), &Value::Null), "{result}");
            let trips = result["round_trips"].as_array().unwrap();
            assert_eq!(trips.len(), modes, "{result}");
            for trip in trips {
                assert!(trip["ratio"].as_f64().unwrap() > 1.5, "{trip}");
                assert_eq!(trip["kinds"][3]["incompressible"], 16, "random pages do not shrink: {trip}");
                for direction in ["compress", "decompress"] {
                    assert!(trip[direction]["single"]["p50_ns"].as_u64().unwrap() > 0, "{trip}");
                    assert!(trip[direction]["deep_mb_per_s"].as_f64().unwrap() > 0.0, "{trip}");
                }
            }
            let probes = result["probes"].as_array().unwrap();
            assert!(probes.len() > 20 && probes.iter().all(|probe| probe["agrees"] == true), "{result}");
        }
    }
    let report =
        json(&["test", "--pages", "8", "--json", "--no-probes", "--queue", "wq0.1", "--emulate", "queues=2"]);
    assert_eq!(report["results"].as_array().unwrap().len(), 1);
    let said = works(&["test", "--pages", "16", "--emulate", "queues=2"]);
    assert!(said.starts_with("Emulated") && said.contains("wq0.1") && said.contains("passed"), "{said}");
    fails(&["test", "--queue", "wq7.7", "--emulate", "queues=2"], &["no queue wq7.7"]);
}

/// A device that reports success and writes nothing (driver's benches only) loses every page.
#[test]
fn devices_that_do_no_work_are_refused() {
    let refused = |arguments: &[&str], emulate: Option<&str>| {
        let mut command = uzswap();
        command.args(arguments).env_remove("UZSWAP_IAA_EMULATE");
        let ran = Ran::of(command.envs(emulate.map(|spec| ("UZSWAP_IAA_EMULATE", spec))));
        assert!(matches!(ran.status, Some(2 | 125)), "{ran}");
        ran.assert_says(&["every page would be lost", "leave out work="]);
        assert_eq!(ran.printed, "", "the program ran: {ran}");
        ran.said
    };
    let run = ["run", "--ram", "64M", "--compressor"];
    let program = ["--", "echo", "ran"];
    for name in ["deflate-iaa:work=null", "deflate-iaa-dynamic:work=timed:3500,devices=2"] {
        refused(&[&run[..], &[name], &program[..]].concat(), None);
    }
    for name in ["deflate-iaa", "deflate-iaa-dynamic", "deflate-iaa:verify_compress=1"] {
        let error = refused(&[&run[..], &[name], &program[..]].concat(), Some("work=timed:3500"));
        assert!(error.contains("UZSWAP_IAA_EMULATE"), "{error}");
    }
    refused(&["iaa", "stats", "--emulate", "work=null"], None);
    refused(&["iaa", "test", "--emulate", "work=null"], None);
}

/// The driver as programs use it: both compressors at two depths, a queue that is disabled in the
/// midst and returns, a fork.
#[test]
fn the_driver_is_tested_on_all_queues() {
    for spec in ["devices=2,queues=2", "devices=2,queues=2,generation=2,mode=shared"] {
        let report = json(&["test", "--driver", "--pages", "64", "--json", "--emulate", spec]);
        let (driver, emulated) = (&report["driver"], &report["emulated"]);
        assert_eq!((emulated, &report["passed"]), (&Value::from(true), &Value::from(true)), "{report}");
        let rounds = driver["rounds"].as_array().unwrap();
        let kind = |round: &Value| (round["compressor"].clone(), round["descriptors"].as_u64().unwrap());
        let kinds: Vec<_> = rounds.iter().map(kind).collect();
        let [fixed, dynamic] = ["deflate-iaa", "deflate-iaa-dynamic"].map(Value::from);
        assert_eq!(kinds, [(fixed.clone(), 1), (fixed, 8), (dynamic.clone(), 1), (dynamic, 8)]);
        for round in rounds {
            // A quarter of the pages is random, on each thread.
            assert_eq!(round["incompressible"], 16 * driver["threads"].as_u64().unwrap(), "{round}");
            assert!(round["compress"]["mb_per_s"].as_f64().unwrap() > 0.0, "{round}");
        }
        let queues = driver["queues"].as_array().unwrap();
        assert_eq!(queues.len(), 4, "{driver}");
        let compressed: Vec<u64> = queues.iter().map(|queue| queue["compressed"].as_u64().unwrap()).collect();
        assert!(compressed.iter().filter(|jobs| **jobs > 0).count() >= 2, "one device only: {compressed:?}");
        let interrupted = &driver["interrupted"];
        assert!(interrupted["quarantines"].as_u64().unwrap() > 0, "{interrupted}");
        assert!(interrupted["back_after_ms"].is_u64(), "{interrupted}");
        assert_eq!(driver["fork"], "passed", "{driver}");
    }
    prints(
        &["test", "--driver", "--pages", "16", "--emulate", "devices=1"],
        &["Emulated", "DESCRIPTORS", "wq0.0", "enabled: jobs after", "fork: passed"],
    );
    fails(&["test", "--driver", "--emulate", "devices=1", "--interrupt", "wq9.9"], &["wq9.9"]);
}

/// Pages that a device damages fail the test.
#[test]
fn a_driver_on_faulty_devices_is_told() {
    let ran = iaa(&["test", "--driver", "--pages", "64", "--emulate", "faults=hardware:0.2,seed=3"]);
    ran.assert_prints(&["total_sw_comp_calls", "quarantines"]);
}

#[test]
fn faulty_devices_do_not_pass() {
    let arguments = ["test", "--pages", "32", "--emulate", "faults=hardware:0.2,seed=3"];
    let ran = iaa(&arguments);
    ran.assert_status(125).assert_says(&["1 of 1 queues failed"]).assert_prints(&["hardware error"]);
    let report =
        json(&["test", "--pages", "32", "--json", "--no-probes", "--emulate", "faults=page:0.02,seed=3"]);
    assert!(report["results"][0]["page_faults"].as_u64().unwrap() > 0, "{report}");
}

/// Real queues that cannot be opened: each has its own advice.
#[test]
fn queues_that_cannot_be_opened_say_why() {
    let directory = model("devices=1,queues=2");
    let (sys, dev) = (directory.text("sys"), directory.text("dev"));
    let test = |more: &[&str]| {
        let ran = iaa(&[&["test", "--sysfs", &sys, "--dev", &dev], more].concat());
        ran.assert_status(125);
        ran.printed + &ran.said
    };
    let said = test(&[]);
    assert!(said.contains("wq0.0 has no device file") && said.contains("2 of 2 queues failed"), "{said}");
    let at = |name: &str| directory.path(&format!("sys/bus/dsa/devices/{name}"));
    fs::write(at("wq0.0/type"), "kernel\n").unwrap();
    assert!(test(&["--queue", "wq0.0"]).contains("is the kernel's"));
    fs::write(at("wq0.1/state"), "disabled\n").unwrap();
    assert!(test(&[]).contains("belong to the kernel"));
    assert!(test(&["--queue", "wq0.1"]).contains("wq0.1 is disabled"));
    fs::write(at("iax0/state"), "halted\n").unwrap();
    assert!(test(&["--queue", "wq0.1"]).contains("iax0 has halted"));
}

#[test]
fn counters_of_a_load_on_emulated_devices() {
    let report = json(&["stats", "--json", "--emulate", "devices=2,queues=2,generation=2"]);
    let program = &report["programs"][0];
    assert_eq!((&program["command"], &program["emulated"]), (&"uzswap".into(), &true.into()));
    // 256 pages in two modes; a quarter is random and does not shrink.
    assert_eq!(program["global_stats"]["total_comp_calls"], 512);
    assert_eq!(program["global_stats"]["total_completion_comp_buf_overflow_errors"], 128);
    let queues = program["wq_stats"].as_object().unwrap();
    let total: u64 = queues.values().map(|queue| queue["comp_calls"].as_u64().unwrap()).sum();
    assert_eq!((queues.len(), total), (4, 512));
    prints(&["stats", "--emulate", "devices=1"], &["total_decomp_bytes_in", "wq0.0"]);
}

#[test]
fn counters_of_the_kernel() {
    let directory = model("devices=1");
    let sys = directory.text("sys");
    let debug = directory.path("sys/kernel/debug/iaa-crypto");
    fs::create_dir_all(&debug).unwrap();
    fs::write(debug.join("global_stats"), "global stats:\n  total_comp_calls: 12\n  total_decomp_calls: 7\n")
        .unwrap();
    fs::write(debug.join("wq_stats"), "iaa device:\n  id: 1\n").unwrap();
    fs::write(debug.join("stats_reset"), "").unwrap();
    let kernel = &json(&["stats", "--json", "--sysfs", &sys])["kernel"];
    assert_eq!(
        (&kernel["global_stats"]["total_decomp_calls"], &kernel["wq_stats"][1]),
        (&7.into(), &"  id: 1".into())
    );
    prints(&["stats", "--sysfs", &sys], &["total_comp_calls: 12"]);
}

#[test]
fn every_verb_has_help_with_examples() {
    for verb in ["list", "configure", "load", "save", "stats", "test"] {
        prints(&[verb, "--help"], &["Examples:", "--emulate", "--json"]);
    }
}
