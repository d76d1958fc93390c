//! Readers of operators' texts, as functions of plain values, for the fuzz targets. No part of the
//! API.

use std::path::Path;

use message::Headers;

use crate::config::{Config, Overrides, redact, units};

/// The configuration that a file and variables give, as it is shown; or what is wrong, as it is
/// shown.
pub fn configuration(text: &str, variables: Vec<(String, String)>) -> Result<String, String> {
    let overrides = Overrides { variables, flags: Vec::new() };
    match Config::read(Path::new("relay.toml"), text, &overrides) {
        Ok((_, effective)) => Ok(format!("{effective}\n{}", effective.to_json())),
        Err(error) => Err(format!("{:?}", miette::Report::new(error))),
    }
}

/// A URL as it is shown.
pub fn shown_url(url: &str) -> String {
    redact::url(url)
}

/// A duration read and written again.
pub fn duration(text: &str) -> Result<String, String> {
    text.parse::<units::Time>().map(|time| time.to_string()).map_err(|error| error.to_string())
}

/// A size read and written again.
pub fn size(text: &str) -> Result<String, String> {
    text.parse::<units::Size>().map(|size| size.to_string()).map_err(|error| error.to_string())
}

/// The headers of `relay dead edit`, one argument each.
pub fn edited_headers(arguments: &[&str]) -> Result<Option<Headers>, String> {
    crate::cli::edited_headers(arguments)
}
