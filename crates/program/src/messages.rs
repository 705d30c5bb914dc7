//! Messages on standard error.

/// Prints a line to standard error, as the standard macro does. If the reader has closed its end,
/// the line is lost without a panic, so the exit status stays the program's.
macro_rules! eprintln {
    ($($message:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}
