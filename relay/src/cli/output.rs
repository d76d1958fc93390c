//! Standard output: tables for people, JSON for machines. Everything else goes to standard error.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::failure::Failure;
use crate::config::units::Time;

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// JSON for machines; durations in seconds.
    Json,
}

impl Format {
    /// Prints a result: as JSON, or as the text that `table` makes of it.
    pub(crate) fn print<T: Serialize>(
        self,
        result: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self {
            Self::Table => table(result),
            Self::Json => serde_json::to_string_pretty(result).map_err(std::io::Error::from)?,
        };
        print(&text)
    }
}

/// Writes a text and a line break. A reader that has seen enough (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A table without lines, so that `grep` and `awk` work on it. Wrapped only for a terminal.
pub(crate) fn table<const N: usize>(
    headers: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(headers.map(str::to_uppercase));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A duration as people say it: to the millisecond below a second, its two largest units above.
pub(crate) fn age(duration: Duration) -> String {
    let millis = duration.as_millis();
    let step = match millis {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    let rounded = u64::try_from(millis / step * step).unwrap_or(u64::MAX);
    Time(Duration::from_millis(rounded)).to_string()
}

/// A value that may be missing.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| String::from("-"), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_no_more_digits_than_people_need() {
        for (millis, shown) in [
            (0, "0s"),
            (234, "234ms"),
            (1_234, "1s"),
            (12_345, "12s"),
            (125_500, "2m5s"),
            (90_061_000, "1d1h"),
        ] {
            assert_eq!(age(Duration::from_millis(millis)), shown);
        }
    }

    #[test]
    fn tables_are_plain_columns() {
        let text = table(["name", "state"], [["orders".into(), "ok".into()], ["a".into(), String::new()]]);
        assert_eq!(text, "NAME    STATE\norders  ok\na");
    }
}
