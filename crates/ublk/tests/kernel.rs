//! A disk of the kernel, if it has ublk and this process may use it. `machine/clients` tests more.

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use device::{Config, Device};
use support::fill;
use ublk::{Error, Server, Settings};

fn config() -> Config {
    Config { size_bytes: 64 << 20, ram_bytes: Some(64 << 20), compressor: "lz4".into(), ..Config::default() }
}

#[test]
fn a_disk_is_written_read_and_taken_away() {
    let settings = Settings { queues: 2, depth: 8, ..Settings::default() };
    let server = match Server::start(Device::new(config()).unwrap(), &settings) {
        Ok(server) => server,
        Err(error @ (Error::Missing | Error::Control(_) | Error::Crashes(_) | Error::Ring(_))) => {
            return testkit::skip!("kernel", "{error}");
        }
        Err(error) => panic!("{error}"),
    };
    let path = server.block_device();
    assert_eq!((server.queues(), server.is_busy()), (2, false));
    {
        let disk = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut bytes = vec![0; 3 << 20];
        fill(&mut bytes, 1);
        disk.write_all_at(&bytes, 12345).unwrap();
        disk.sync_all().unwrap();
        let mut back = vec![0; bytes.len()];
        disk.read_exact_at(&mut back, 12345).unwrap();
        assert!(back == bytes);
    }
    assert!(server.device().statistics().write_bytes >= 3 << 20);
    server.stop().unwrap();
    assert!(!path.exists());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |settings: Settings| {
        let device = Device::new(config()).unwrap();
        matches!(Server::start(device, &settings), Err(Error::Setting(_)))
    };
    assert!(refused(Settings { depth: 0, ..Settings::default() }));
    assert!(refused(Settings { depth: 4097, ..Settings::default() }));
    assert!(refused(Settings { request_bytes: 4097, ..Settings::default() }));
    assert!(refused(Settings { request_bytes: 2 << 20, ..Settings::default() }));
    assert!(refused(Settings { block_bytes: 1024, ..Settings::default() }));
}
