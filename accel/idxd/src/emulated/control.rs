//! Removing and restoring emulated devices from outside: a file lists the absent ones.
//!
//! One line each: `iax1 removed`, `iax0 disabled` (all its queues) or `wq0.1 disabled`. Unnamed
//! devices and queues are present and enabled; with an empty or missing file all are. `#` begins a
//! comment.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

use super::machine::{Machine, QueueId};
use crate::words::words;
use crate::Refusal;

/// The absent devices and queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    removed: Vec<usize>,
    disabled: Vec<(usize, Option<usize>)>,
}

/// The state of a device or queue in a control file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Present and enabled.
    Enabled,
    /// Present, but takes nothing. Accepted jobs finish.
    Disabled,
    /// Absent, with all its jobs lost and its portals dead. Only for devices.
    Removed,
}

words!(Presence, "enabled, disabled, removed", Enabled => "enabled", Disabled => "disabled", Removed => "removed");

fn parse_name(name: &str) -> Option<(usize, Option<usize>)> {
    if let Some(device) = name.strip_prefix("iax") {
        return Some((device.parse().ok()?, None));
    }
    let (device, queue) = name.strip_prefix("wq")?.split_once('.')?;
    Some((device.parse().ok()?, Some(queue.parse().ok()?)))
}

impl Control {
    /// Reads a control file; with a missing one everything is present.
    ///
    /// # Errors
    /// Those of the file system, and of kind `InvalidData` for a malformed line.
    pub fn read(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => {
                text.parse().map_err(|error: String| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Control::default()),
            Err(error) => Err(error),
        }
    }

    /// Sets the state of `name`.
    ///
    /// # Errors
    /// Describes a wrong name, or a state that does not apply to it.
    pub fn set(&mut self, name: &str, presence: Presence) -> Result<(), String> {
        let what @ (device, queue) =
            parse_name(name).ok_or_else(|| format!("{name:?} is no device (iax0) and no queue (wq0.1)"))?;
        if presence == Presence::Removed && queue.is_some() {
            return Err(format!("{name}: queues are disabled; devices are removed"));
        }
        self.disabled.retain(|known| *known != what);
        if queue.is_none() {
            self.removed.retain(|known| *known != device);
        }
        match presence {
            Presence::Enabled => {}
            Presence::Disabled => self.disabled.push(what),
            Presence::Removed => self.removed.push(device),
        }
        Ok(())
    }

    fn is_removed(&self, device: usize) -> bool {
        self.removed.contains(&device)
    }

    fn is_disabled(&self, id: QueueId) -> bool {
        let QueueId { device, queue } = id;
        self.disabled.iter().any(|known| *known == (device, None) || *known == (device, Some(queue)))
    }
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut control = Control::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |reason: String| format!("line {}: {reason}", number + 1);
            let (name, state) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| wrong(format!("{line:?} is not a name and a state")))?;
            let state = state.trim().parse().map_err(|Refusal(reason)| wrong(reason))?;
            control.set(name, state).map_err(wrong)?;
        }
        Ok(control)
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.removed {
            writeln!(f, "iax{device} removed")?;
        }
        for (device, queue) in &self.disabled {
            match queue {
                None => writeln!(f, "iax{device} disabled")?,
                Some(queue) => writeln!(f, "wq{device}.{queue} disabled")?,
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Makes the machine match `control`. Unknown names are ignored.
    pub fn apply(&self, control: &Control) {
        for device in 0..self.devices() {
            if control.is_removed(device) {
                self.remove(device);
                continue;
            }
            self.restore(device);
            for queue in 0..self.spec().queues as usize {
                let id = QueueId { device, queue };
                match control.is_disabled(id) {
                    true => self.disable_queue(id),
                    false => self.enable_queue(id),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_understood_and_written_back() {
        let text = "# for a test\niax1 removed\nwq0.1   disabled # one\n\niax2 disabled\nwq3.0 enabled\n";
        let control: Control = text.parse().unwrap();
        assert!(control.is_removed(1) && !control.is_removed(0));
        let id = |device, queue| QueueId { device, queue };
        assert!(control.is_disabled(id(0, 1)) && !control.is_disabled(id(0, 0)));
        assert!(control.is_disabled(id(2, 7)) && !control.is_disabled(id(3, 0)));
        assert_eq!(control.to_string().parse(), Ok(control.clone()));
        let mut control = control;
        control.set("iax1", Presence::Enabled).unwrap();
        control.set("iax2", Presence::Enabled).unwrap();
        control.set("wq0.1", Presence::Enabled).unwrap();
        assert_eq!(control, Control::default());
        assert_eq!(Control::read(Path::new("/no/such/file")).unwrap(), Control::default());
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Control>().unwrap_err();
        assert!(error("\ndsa0 removed").contains("line 2: \"dsa0\""));
        assert!(error("wq0.0 removed").contains("devices are removed"));
        assert!(error("iax0").contains("not a name and a state"));
        assert!(error("iax0 broken").contains("enabled, disabled, removed"));
    }
}
