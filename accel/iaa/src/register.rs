//! The compressors by name, and the choice of their devices.
//!
//! All compressors of a process share a driver, because a dedicated queue can be opened once. A
//! driver lives as long as a compressor uses it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use acomp::{Algorithm, Registry};
use idxd::emulated::{EmulateSpec, Run};

use crate::algorithm::Iaa;
use crate::driver::Driver;
use crate::real::Real;
use crate::settings::Settings;

/// Environment variable that selects emulated devices: `devices=4,queues=2`, or empty for one
/// device.
pub const EMULATE_VARIABLE: &str = "UZSWAP_IAA_EMULATE";

/// Emulated on machines without a device, by default: one device with both modes, working in the
/// submitting thread.
const FALLBACK: &str = "generation=2";

/// How compressors choose devices.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Devices to emulate, unless the compressor's own parameter names some. None: this machine's
    /// devices.
    pub emulate: Option<String>,
    /// Engines of emulated devices work in the submitting thread, regardless of the specification.
    /// For programs that must not start threads.
    pub inline: bool,
}

/// Adds `deflate-iaa` and `deflate-iaa-dynamic` to `registry`, on the devices of
/// [`EMULATE_VARIABLE`], of this machine, or else on an emulated one. [`take_notice`] reports the
/// choice.
pub fn register(registry: &mut Registry) {
    let emulate = std::env::var(EMULATE_VARIABLE).ok();
    register_with(registry, Options { emulate, inline: false });
}

/// Adds the two compressors.
pub fn register_with(registry: &mut Registry, options: Options) {
    let dynamic_options = options.clone();
    registry.register("deflate-iaa", "deflate-iaa[:KEY=VALUE,...]", move |parameter| {
        let driver = driver(parameter, &options)?;
        Ok(Arc::new(named(Iaa::fixed(driver), parameter)) as Arc<dyn Algorithm>)
    });
    registry.register("deflate-iaa-dynamic", "deflate-iaa-dynamic[:KEY=VALUE,...]", move |parameter| {
        let driver = driver(parameter, &dynamic_options)?;
        Ok(Arc::new(named(Iaa::dynamic(driver), parameter)) as Arc<dyn Algorithm>)
    });
}

fn named(algorithm: Iaa, parameter: Option<&str>) -> Iaa {
    match parameter {
        None => algorithm,
        Some(parameter) => {
            let name = format!("{}:{parameter}", algorithm.name());
            algorithm.named(name)
        }
    }
}

/// The source of devices.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// This machine, or else the fallback.
    Any,
    /// This machine.
    Real,
    Emulated(EmulateSpec),
}

/// Splits a parameter into driver settings and an emulation, or `real`.
fn parse(parameter: Option<&str>, options: &Options) -> Result<(Source, Settings), String> {
    let mut settings = Settings::default();
    let (mut is_real, mut emulate) = (false, options.emulate.clone());
    let mut own: Option<String> = None;
    for part in parameter.unwrap_or("").split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if part == "real" {
            is_real = true;
            continue;
        }
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match settings.set(key, value) {
            Some(result) => result?,
            None if part == "emulate" => drop(own.get_or_insert_default()),
            // All other keys belong to the emulation.
            None => {
                let own = own.get_or_insert_default();
                own.push(',');
                own.push_str(part);
            }
        }
    }
    if is_real && own.is_some() {
        return Err("real devices and emulated ones exclude each other".to_owned());
    }
    if is_real {
        return Ok((Source::Real, settings));
    }
    let is_own = own.is_some();
    if is_own {
        emulate = own;
    }
    let Some(text) = emulate else { return Ok((Source::Any, settings)) };
    let mut spec: EmulateSpec =
        text.parse().map_err(|error| format!("{error}; of the driver: {}", Settings::KEYS))?;
    // A compressor found by name stores pages.
    spec.ensure_real_work().map_err(|error| match &options.emulate {
        Some(_) if !is_own => format!("{EMULATE_VARIABLE}: {error}"),
        _ => error.to_string(),
    })?;
    if options.inline && spec.run == Run::Threads {
        spec.run = Run::Inline;
    }
    Ok((Source::Emulated(spec), settings))
}

struct Known {
    process: u32,
    source: Source,
    driver: Weak<Driver>,
}

static DRIVERS: Mutex<Vec<Known>> = Mutex::new(Vec::new());
/// The pending notice, and the last process that made one: a forked child opens devices itself.
static NOTICE: Mutex<(Option<String>, u32)> = Mutex::new((None, 0));

fn driver(parameter: Option<&str>, options: &Options) -> Result<Arc<Driver>, String> {
    let (source, settings) = parse(parameter, options)?;
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    // A fork's copies of the parent's drivers are of no use: the kernel refuses their portals.
    let process = std::process::id();
    drivers.retain(|known| known.process == process && known.driver.strong_count() > 0);
    for known in drivers.iter() {
        let Some(driver) = known.driver.upgrade() else { continue };
        if known.source == source && *driver.settings() == settings {
            return Ok(driver);
        }
        if !driver.is_emulated() && !matches!(source, Source::Emulated(_)) {
            return Err("the devices are in use in this process with other parameters".to_owned());
        }
    }
    let driver = Arc::new(open(&source, settings)?);
    if !options.inline {
        keep_watch(&driver);
    }
    drivers.push(Known { process, source, driver: Arc::downgrade(&driver) });
    Ok(driver)
}

fn open(source: &Source, settings: Settings) -> Result<Driver, String> {
    let spec = match source {
        Source::Emulated(spec) => {
            note(
                "deflate-iaa works on emulated devices: figures say nothing of a device's own speed"
                    .to_owned(),
            );
            spec.clone()
        }
        Source::Any | Source::Real => {
            let reasons = match Driver::of_this_machine(settings.clone()) {
                Ok(driver) => return Ok(driver),
                Err(refusals) => refusals.join("; "),
            };
            if *source == Source::Real {
                return Err(format!("no device: {reasons}"));
            }
            note(format!(
                "deflate-iaa works on an emulated device, because {reasons}: figures say nothing of a device's own speed"
            ));
            let spec = FALLBACK.parse().expect("a specification that is tested");
            return Driver::emulated_for_now(&spec, Real::new(), settings).map_err(cannot_emulate);
        }
    };
    Driver::emulated(&spec, settings).map_err(cannot_emulate)
}

fn cannot_emulate(error: std::io::Error) -> String {
    format!("cannot emulate devices: {error}")
}

/// The interval at which a driver looks for changed devices.
const LOOK: Duration = Duration::from_millis(250);

/// Starts a thread that follows the devices of `driver` while it is used. In programs that must not
/// start threads, [`acomp::Algorithm::maintain`] follows them. Even without the thread, software
/// takes over from queues that are gone.
fn keep_watch(driver: &Arc<Driver>) {
    if !driver.has_changing_devices() {
        return;
    }
    let driver = Arc::downgrade(driver);
    let watch = move || {
        while let Some(driver) = driver.upgrade() {
            driver.refresh();
            drop(driver);
            std::thread::sleep(LOOK);
        }
    };
    let _ = std::thread::Builder::new().name("iaa-watch".to_owned()).spawn(watch);
}

fn note(text: String) {
    let mut notice = NOTICE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if notice.1 != process {
        *notice = (Some(text), process);
    }
}

/// The notice for users about emulated or missing devices: once a process, `None` if all are real.
pub fn take_notice() -> Option<String> {
    NOTICE.lock().unwrap_or_else(PoisonError::into_inner).0.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(parameter: &str, emulate: Option<&str>) -> Result<(Source, Settings), String> {
        let options = Options { emulate: emulate.map(str::to_owned), inline: true };
        parse(Some(parameter), &options)
    }

    #[test]
    fn parameters_are_of_the_driver_or_of_the_emulation() {
        assert_eq!(parsed("", None), Ok((Source::Any, Settings::default())));
        let (source, settings) = parsed("verify_compress=1,devices=4,threads,sync_mode=sync", None).unwrap();
        let Source::Emulated(spec) = source else { panic!("{source:?}") };
        assert_eq!((spec.devices, spec.run), (4, Run::Inline));
        assert!(settings.verify_compress);
        // The parameter's own emulation overrides that of the options.
        let devices = |parameter, emulate| match parsed(parameter, emulate).unwrap().0 {
            Source::Emulated(spec) => spec.devices,
            source => panic!("{source:?}"),
        };
        assert_eq!((devices("", Some("devices=3")), devices("emulate", Some("devices=3"))), (3, 1));
        assert_eq!(devices("devices=2", Some("devices=3")), 2);
        assert_eq!(parsed("real", Some("devices=3")).unwrap().0, Source::Real);
        assert!(parsed("real,devices=2", None).unwrap_err().contains("exclude"));
        let error = parsed("wheels=4", None).unwrap_err();
        assert!(error.contains("known: sockets") && error.contains("verify_compress"), "{error}");
        assert!(parsed("sync_mode=later", None).unwrap_err().contains("sync or async"));
    }

    #[test]
    fn devices_that_do_no_work_are_not_found_by_name() {
        for work in ["work=null", "work=timed:3500", "devices=2,work=null"] {
            let refused = |parameter, emulate| {
                let error = parsed(parameter, emulate).unwrap_err();
                assert!(error.contains("lost") && error.contains("leave out work="), "{error}");
                error
            };
            assert!(!refused(work, None).contains(EMULATE_VARIABLE));
            assert!(!refused(work, Some("devices=2")).contains(EMULATE_VARIABLE));
            assert!(refused("verify_compress=1", Some(work)).contains(EMULATE_VARIABLE));
            // Another choice of devices replaces the variable's.
            assert!(parsed("devices=1", Some(work)).is_ok() && parsed("real", Some(work)).is_ok());
            for family in ["deflate-iaa", "deflate-iaa-dynamic"] {
                let mut registry = Registry::new();
                register_with(&mut registry, Options { emulate: Some(work.to_owned()), inline: false });
                for name in [family.to_owned(), format!("{family}:{work}")] {
                    let Err(error) = registry.find(&name) else { panic!("{name}") };
                    assert!(error.to_string().contains("leave out work="), "{error}");
                }
            }
        }
    }

    #[test]
    fn compressors_share_a_driver_and_say_once_that_it_is_emulated() {
        let mut registry = Registry::new();
        register_with(&mut registry, Options { emulate: Some("devices=2".to_owned()), inline: false });
        let count = || {
            let drivers = DRIVERS.lock().unwrap();
            drivers.iter().filter(|known| known.driver.strong_count() > 0).count()
        };
        let fixed = registry.find("deflate-iaa").unwrap();
        let dynamic = registry.find("deflate-iaa-dynamic").unwrap();
        assert_eq!(count(), 1);
        assert!(fixed.is_emulated() && dynamic.is_emulated());
        assert_eq!((fixed.name(), fixed.batch_size()), ("deflate-iaa", 8));
        let other = registry.find("deflate-iaa:sync_mode=sync").unwrap();
        assert_eq!((other.name(), other.batch_size(), count()), ("deflate-iaa:sync_mode=sync", 1, 2));
        // A fork copies emulated devices, but not threads.
        let threads = registry.find("deflate-iaa:threads").unwrap();
        assert!(fixed.survives_fork() && dynamic.survives_fork() && !threads.survives_fork());
        drop((fixed, dynamic, other, threads));
        assert_eq!(count(), 0);
        assert!(take_notice().is_some_and(|notice| notice.contains("emulated")));
        let _again = registry.find("deflate-iaa").unwrap();
        assert_eq!(take_notice(), None);
        assert!(registry.find("deflate-iaa:wheels").is_err());
    }
}
