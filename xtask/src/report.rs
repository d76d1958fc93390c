//! Reports on stdout, for people and for scripts.

use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};

/// The maximum width of a table with sentences in it, in columns.
const WIDTH_MAX: u16 = 160;

/// The form of a command's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
}

/// Formats a table with a line under the header.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    filled(header, rows).to_string()
}

/// Formats the same table, with long cells wrapped over several lines.
pub(crate) fn wrapped_table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = filled(header, rows);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH_MAX);
    table.to_string()
}

fn filled<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table
}

/// Prints pretty JSON on stdout.
pub(crate) fn json(value: &serde_json::Value) {
    println!("{value:#}");
}

/// Returns an address without its password: a person's own URL may hold a secret.
pub(crate) fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let Some((user, host)) = rest.rsplit_once('@') else { return address.to_owned() };
    let user = user.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cells_are_wrapped() {
        let row = ["name".to_owned(), "a promise that no longer holds ".repeat(12)];
        let table = wrapped_table(["name", "text"], [row]);
        let longest = table.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest <= WIDTH_MAX.into()), "{table}");
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("postgres://me:p@ss@db:5432/x"), "postgres://me@db:5432/x");
        assert_eq!(without_password("http://127.0.0.1:1"), "http://127.0.0.1:1");
        assert_eq!(without_password("127.0.0.1:19092"), "127.0.0.1:19092");
    }
}
