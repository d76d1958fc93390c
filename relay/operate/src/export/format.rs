//! The text of a file, in parts.

use std::str::FromStr;

use serde::Serialize;

use super::cells::rows;
use crate::error::OperateError;
use crate::text::harmless_json;

message::words! {
    /// The format of an export.
    pub enum ExportFormat {
        /// Comma-separated values (RFC 4180), with a line of headers.
        Csv = "csv",
        /// An object with the rows and a list of missing parts.
        Json = "json",
    }
}

impl ExportFormat {
    /// Returns the media type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Json => "application/json",
        }
    }
}

/// The error for a word that names no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a format of an export; use csv or json")]
pub struct UnknownFormat(String);

impl FromStr for ExportFormat {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, UnknownFormat> {
        Self::from_word(word).ok_or_else(|| UnknownFormat(word.chars().take(40).collect()))
    }
}

/// A row of an export.
pub(super) trait ExportRow: Serialize {
    /// The headers of the CSV.
    const HEADERS: &'static [&'static str];
    /// The name of the rows in the JSON.
    const NAME: &'static str;
    /// The column with the word `missing` in a row about missing data.
    const MISSING: &'static str;

    /// Returns the cells of the CSV, in the order of the headers.
    fn cells(&self) -> Vec<String>;
}

/// The word in a row about missing data.
const MISSING: &str = "missing";

/// The text of a file, in parts: a beginning, rows, an end.
#[derive(Debug)]
pub(super) struct Text {
    format: ExportFormat,
    has_rows: bool,
}

impl Text {
    pub(super) fn new(format: ExportFormat) -> Self {
        Self { format, has_rows: false }
    }

    pub(super) fn begin<T: ExportRow>(&self) -> String {
        match self.format {
            ExportFormat::Csv => rows([T::HEADERS.iter().map(|header| (*header).to_owned()).collect()]),
            ExportFormat::Json => format!("{{\"{}\":[", T::NAME),
        }
    }

    pub(super) fn rows<T: ExportRow>(&mut self, found: &[T]) -> String {
        match self.format {
            ExportFormat::Csv => rows(found.iter().map(ExportRow::cells)),
            ExportFormat::Json => {
                let mut text = String::new();
                for row in found {
                    text.push_str(if self.has_rows { ",\n" } else { "\n" });
                    self.has_rows = true;
                    // A row is text and numbers, which are always JSON.
                    text.push_str(&harmless_json(&serde_json::to_string(row).unwrap_or_default()));
                }
                text
            }
        }
    }

    pub(super) fn end<T: ExportRow>(&self, missing: &[OperateError]) -> String {
        let texts = missing.iter().map(ToString::to_string);
        match self.format {
            ExportFormat::Csv => rows(texts.map(|text| {
                let of_header = |header: &&str| match *header {
                    "error" => text.clone(),
                    header if header == T::MISSING => MISSING.to_owned(),
                    _ => String::new(),
                };
                T::HEADERS.iter().map(of_header).collect()
            })),
            ExportFormat::Json => {
                let texts: Vec<String> = texts.collect();
                let texts = serde_json::to_string(&texts).unwrap_or_default();
                format!("\n],\"{MISSING}\":{}}}\n", harmless_json(&texts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Line {
        word: &'static str,
        error: &'static str,
    }

    impl ExportRow for Line {
        const HEADERS: &'static [&'static str] = &["word", "error"];
        const NAME: &'static str = "lines";
        const MISSING: &'static str = "word";

        fn cells(&self) -> Vec<String> {
            vec![self.word.to_owned(), self.error.to_owned()]
        }
    }

    fn whole(format: ExportFormat, missing: &[OperateError]) -> String {
        let mut text = Text::new(format);
        let mut file = text.begin::<Line>();
        file += &text.rows(&[Line { word: "a", error: "=1" }]);
        file += &text.rows::<Line>(&[]);
        file += &text.rows(&[Line { word: "b", error: "" }, Line { word: "c", error: "" }]);
        file + &text.end::<Line>(missing)
    }

    #[test]
    fn parts_are_one_file() {
        assert_eq!(whole(ExportFormat::Csv, &[]), "word,error\r\na,'=1\r\nb,\r\nc,\r\n");
        let away = [OperateError::refused("orders: refused", "")];
        let csv = whole(ExportFormat::Csv, &away);
        assert!(csv.ends_with("c,\r\nmissing,orders: refused\r\n"), "{csv}");
        let json: serde_json::Value = serde_json::from_str(&whole(ExportFormat::Json, &away)).unwrap();
        assert_eq!(json["lines"].as_array().unwrap().len(), 3);
        assert_eq!(
            (&json["lines"][0]["error"], &json["missing"][0]),
            (&"=1".into(), &"orders: refused".into())
        );
        let mut text = Text::new(ExportFormat::Json);
        let empty = text.begin::<Line>() + &text.rows::<Line>(&[]) + &text.end::<Line>(&[]);
        let json: serde_json::Value = serde_json::from_str(&empty).unwrap();
        assert_eq!(json, serde_json::json!({ "lines": [], "missing": [] }));
    }

    #[test]
    fn a_format_is_one_of_two_words() {
        assert_eq!("csv".parse(), Ok(ExportFormat::Csv));
        assert!("xlsx".parse::<ExportFormat>().unwrap_err().to_string().contains("use csv or json"));
    }
}
