//! Lines on standard error. `eprintln!` panics when standard error is closed or its disk is full,
//! and a command must not end for that.

/// Prints a line to standard error, if that can be written.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a text without a line break to standard error, if that can be written.
macro_rules! note_text {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}
