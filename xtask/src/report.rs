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
