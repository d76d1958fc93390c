//! Parsers of operators' input, as functions of plain values, for the fuzz targets. They are not
//! part of the API.

use std::path::Path;

use message::Headers;
use operate::{redact, units};

use crate::config::{Config, Overrides};

/// Returns the configuration from a file and variables as text, or the error as text.
pub fn configuration(text: &str, variables: Vec<(String, String)>) -> Result<String, String> {
    let overrides = Overrides { variables, flags: Vec::new() };
    match Config::read(Path::new("relay.toml"), text, &overrides) {
        Ok((_, effective)) => Ok(format!("{effective}\n{}", effective.to_json())),
        Err(error) => Err(format!("{:?}", miette::Report::new(error))),
    }
}

/// Returns a URL without its secrets.
pub fn shown_url(url: &str) -> String {
    redact::url(url)
}

/// Parses a duration and formats it again.
pub fn duration(text: &str) -> Result<String, String> {
    text.parse::<units::Time>().map(|time| time.to_string()).map_err(|error| error.to_string())
}

/// Parses a size and formats it again.
pub fn size(text: &str) -> Result<String, String> {
    text.parse::<units::Size>().map(|size| size.to_string()).map_err(|error| error.to_string())
}

/// Parses the headers of `relay dead edit`, one per argument.
pub fn edited_headers(arguments: &[&str]) -> Result<Option<Headers>, String> {
    crate::cli::edited_headers(arguments)
}
