//! Processes for tests.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a shell that waits for its input, and returns it with its child's number.
pub fn shell_with_child() -> (Child, u32) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 60 & echo $!; read line; kill $!"]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (shell, line.trim().parse().unwrap())
}

pub fn stop(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
