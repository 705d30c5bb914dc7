//! Messages on standard error.

/// Prints a line to standard error, as the standard library's macro does. If the reader of standard
/// error has closed its end, the line is lost and nothing else happens: the exit status is that of
/// the program under `run`, not of a panic.
macro_rules! eprintln {
    ($($message:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}
