//! The course of events in order: always as a hash, and as text on request.

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

/// A course of events.
#[derive(Debug, Default)]
pub struct Trace {
    hasher: DefaultHasher,
    lines: Option<Vec<String>>,
    len: u64,
}

impl Trace {
    /// Creates an empty one. With `is_kept`, it keeps its text.
    #[must_use]
    pub fn new(is_kept: bool) -> Self {
        Self { lines: is_kept.then(Vec::new), ..Self::default() }
    }

    /// Adds an event at this many milliseconds after the start.
    pub fn note(&mut self, at: u64, event: fmt::Arguments<'_>) {
        self.len += 1;
        self.hasher.write_u64(at);
        // Hashing cannot fail.
        let _ = Hashing(&mut self.hasher).write_fmt(event);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{at:>7} ms  {event}"));
        }
    }

    /// Returns the hash. Two equal hashes mean the same course of events.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the events as text, if they were kept.
    #[must_use]
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

struct Hashing<'a>(&'a mut DefaultHasher);

impl Write for Hashing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
