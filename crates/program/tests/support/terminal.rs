//! A pseudo-terminal for programs under test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A terminal of 80 x 24, in which a program runs.
pub struct Terminal {
    pub child: Child,
    master: File,
    read: String,
}

impl Terminal {
    pub fn start(command: &mut Command) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let (name, settings) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: the numbers and the size are valid; the other pointers may be null.
        assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, name, settings, &size) }, 0);
        // SAFETY: opened just now, with no other owner.
        let [master, slave] = [master, slave].map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let ends = [(); 3].map(|()| Stdio::from(slave.try_clone().unwrap()));
        let [input, output, error] = ends;
        let child = command.stdin(input).stdout(output).stderr(error).spawn().expect("it starts");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { child, master: master.into(), read: String::new() }
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until the output contains `what`; returns the output up to the next read.
    pub fn wait_for(&mut self, what: &str) -> String {
        let mut bytes = [0; 65536];
        while !self.read.contains(what) {
            let len = self.master.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {}", self.read));
            self.read += &String::from_utf8_lossy(&bytes[..len]);
        }
        std::mem::take(&mut self.read)
    }

    /// Waits for the program; returns its status and the unread output.
    pub fn end(mut self) -> (ExitStatus, String) {
        // Unread output fills the terminal, which would stop the program.
        let mut bytes = [0; 65536];
        while let Ok(len @ 1..) = self.master.read(&mut bytes) {
            self.read += &String::from_utf8_lossy(&bytes[..len]);
        }
        (self.child.wait().unwrap(), self.read)
    }
}
