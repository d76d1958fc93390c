//! What people and scripts read on stdout.

use comfy_table::{Table, presets::UTF8_HORIZONTAL_ONLY};

/// The form of a command's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
}

/// A table with a line under the header.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}

/// Pretty JSON on stdout.
pub(crate) fn json(value: &serde_json::Value) {
    println!("{value:#}");
}

/// An address for the screen: a person's own URL may hold a secret.
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
    fn passwords_are_not_shown() {
        assert_eq!(without_password("postgres://me:p@ss@db:5432/x"), "postgres://me@db:5432/x");
        assert_eq!(without_password("http://127.0.0.1:1"), "http://127.0.0.1:1");
        assert_eq!(without_password("127.0.0.1:19092"), "127.0.0.1:19092");
    }
}
