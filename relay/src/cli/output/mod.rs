//! Standard output: tables for people, JSON for machines. Everything else goes to standard error.

mod table;

use std::io::{ErrorKind, Write};

use serde::Serialize;

use super::failure::Failure;
pub(crate) use operate::seconds::age;
pub(crate) use operate::text::{harmless, harmless_json};
pub(crate) use table::{Table, card, sentence, terminal_width};

/// Format of the results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables.
    #[default]
    Table,
    /// JSON, with durations in seconds.
    Json,
}

impl Format {
    /// Prints a result as JSON, or as the text that `table` makes of it. In both, escapes
    /// characters that control a terminal or are invisible.
    pub(crate) fn print<T: Serialize>(
        self,
        result: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        self.print_more(result, table).map(drop)
    }

    /// Like [`print`](Self::print), for commands that go on printing. Returns whether standard
    /// output has a reader.
    pub(crate) fn print_more<T: Serialize>(
        self,
        result: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<bool, Failure> {
        let text = match self {
            Self::Table => harmless(&table(result)),
            Self::Json => harmless_json(&serde_json::to_string_pretty(result).map_err(std::io::Error::from)?),
        };
        print_more(&text)
    }
}

/// Writes a text and a line break. A pipe that the reader has closed (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_to(&mut std::io::stdout().lock(), text).map(drop)
}

/// Like [`print`], for commands that go on printing. Returns whether standard output has a reader.
pub(crate) fn print_more(text: &str) -> Result<bool, Failure> {
    print_to(&mut std::io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<bool, Failure> {
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Returns the text on one line, with control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Returns a table whose columns are all essential: see [`Table`].
pub(crate) fn table<const N: usize>(
    headers: [&'static str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    Table::new(headers, rows).shown()
}

/// Returns a number with the noun that it counts.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Returns the text for an empty list. `is_whole` is false when a place did not answer.
pub(crate) fn nothing_waits(is_whole: bool) -> String {
    String::from(if is_whole {
        "no messages found"
    } else {
        "nothing was found, but not every database answered"
    })
}

/// Returns a value, or a dash if it is missing.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| String::from("-"), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe whose reader has taken some writes and then left.
    struct Pipe(u32);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(ErrorKind::BrokenPipe.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.0 -= 1;
            Ok(())
        }
    }

    #[test]
    fn a_command_that_goes_on_printing_notices_that_its_reader_is_gone() {
        let mut pipe = Pipe(2);
        let printed = [(); 3].map(|()| print_to(&mut pipe, "a line").unwrap());
        assert_eq!(printed, [true, true, false]);
    }

    #[test]
    fn tables_are_plain_columns() {
        let text = table(["name", "state"], [["orders".into(), "ok".into()], ["a".into(), String::new()]]);
        assert_eq!(text, "NAME    STATE\norders  ok\na");
    }

    #[test]
    fn what_came_from_outside_cannot_steer_the_terminal() {
        assert_eq!(harmless("ä\t1\n\u{1b}[2J\u{9b}2J\r"), "ä\t1\n\\u{1b}[2J\\u{9b}2J\\r");
        let row = [String::from("a\nb\tdead"), String::from("\u{1b}]0;\u{202e}x\u{7}")];
        let text = table(["key", "error"], [row]);
        assert_eq!(text, "KEY         ERROR\na\\nb\\tdead  \\u{1b}]0;\\u{202e}x\\u{7}");
    }

    #[test]
    fn a_value_cannot_forge_a_line_of_a_card() {
        let values = [("key", Some("a\nstate  discarded")), ("due in", None), ("state", Some("dead"))];
        let text = card(0, values.map(|(name, value)| (name, value.map(str::to_owned))));
        assert_eq!(text, "key     a\\nstate  discarded\nstate   dead");
    }

    #[test]
    fn nouns_agree_with_their_numbers() {
        assert_eq!([counted(0, "message"), counted(1, "dead message")], ["0 messages", "1 dead message"]);
    }
}
