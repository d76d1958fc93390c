//! Problems of a configuration, shown with file, line and column, or with the name of the variable.

use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use super::decode::Wrong;
use super::tree::Origin;

/// One or several problems of a configuration, which the operator must fix. Contains no secret: the
/// excerpt of the file is masked.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub(crate) struct ConfigError(Box<Told>);

#[derive(Debug)]
struct Told {
    message: String,
    help: Option<String>,
    excerpt: Option<(NamedSource<String>, LabeledSpan)>,
    each: Vec<ConfigError>,
}

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.excerpt.as_ref().map(|(source, _)| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (_, label) = self.0.excerpt.as_ref()?;
        Some(Box::new(std::iter::once(label.clone())))
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        if self.0.each.is_empty() {
            None
        } else {
            Some(Box::new(self.0.each.iter().map(|each| each as &dyn Diagnostic)))
        }
    }
}

/// The file to which errors point.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The content with every secret masked. It has the same length in bytes as the file.
    pub(crate) masked: String,
}

impl ConfigError {
    fn new(message: String) -> Self {
        Self(Box::new(Told { message, help: None, excerpt: None, each: Vec::new() }))
    }

    /// Creates the error for a file that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let mut told = Self::new(format!("cannot read the configuration {}: {error}", path.display()));
        told.0.help = Some(String::from("name it with --config FILE or RELAY_CONFIG"));
        told
    }

    /// Creates the error for all problems.
    pub(crate) fn of(file: &File, wrongs: Vec<Wrong>) -> Self {
        let mut each: Vec<Self> = wrongs.into_iter().map(|wrong| Self::one(file, wrong)).collect();
        if each.len() == 1 {
            return each.remove(0);
        }
        let mut told = Self::new(format!("{} problems in {}", each.len(), file.path.display()));
        told.0.each = each;
        told
    }

    /// Creates the error for one problem.
    pub(crate) fn one(file: &File, wrong: Wrong) -> Self {
        let place = match &wrong.origin {
            Some(Origin::File(span)) => {
                let (line, column) = position(&file.masked, span.start);
                format!("{}:{line}:{column}", file.path.display())
            }
            Some(Origin::Env(name)) => name.clone(),
            Some(Origin::Flag(name)) => (*name).to_owned(),
            Some(Origin::Default) | None => file.path.display().to_string(),
        };
        let path = if wrong.path.is_empty() { String::new() } else { format!("{}: ", wrong.path) };
        let mut told = Self::new(format!("{place}: {path}{}", wrong.message));
        told.0.help = wrong.help;
        if let Some(Origin::File(span)) = wrong.origin
            && let Some(marked) = file.masked.get(span.clone())
        {
            // A section's span can cover many lines: point to its first.
            let end = span.start + marked.find('\n').unwrap_or(marked.len());
            let label = LabeledSpan::new_with_span(Some(String::from("here")), span.start..end);
            told.0.excerpt =
                Some((NamedSource::new(file.path.display().to_string(), file.masked.clone()), label));
        }
        told
    }
}

/// Returns line and column of a byte, both from 1; the column counts characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}
