//! Errors of commands: the text for a person, and the exit code.

use std::fmt::{self, Display};
use std::io::IsTerminal;

use brokers::InvalidSetting;
use message::Fault;
use miette::{Diagnostic, MietteHandler, MietteHandlerOpts, Report, ReportHandler};
use migrations::{MigrateError, SchemaError};
use operate::{OperateError, OperateErrorKind, outage};
use outbox_log::LogError;

use super::exit::Exit;
use super::hint;
use super::output::harmless;
use crate::config::ConfigError;

/// The error of a command.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    report: Report,
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Told {
    message: String,
    help: Option<String>,
}

impl Diagnostic for Told {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn Display>)
    }
}

impl Failure {
    /// Creates a failure with its text.
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        let message = harmless(&message.to_string());
        Self { exit, report: Report::new(Told { message, help: None }) }
    }

    /// Creates a failure with its text and advice, whose commands can be pasted.
    pub(crate) fn with_help(exit: Exit, message: impl Display, help: impl Display) -> Self {
        let help = hint::completed(&harmless(&help.to_string()));
        let told = Told { message: harmless(&message.to_string()), help: Some(help) };
        Self { exit, report: Report::new(told) }
    }

    /// Returns the exit code.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Puts the subject before the text.
    pub(crate) fn about(self, subject: impl Display) -> Self {
        let message = format!("{subject}: {self}");
        match self.report.help().map(|help| help.to_string()) {
            Some(help) => Self::with_help(self.exit, message, help),
            None => Self::new(self.exit, message),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.report, f)
    }
}

impl Failure {
    /// Returns the text for standard error, with excerpts and help.
    #[must_use]
    pub fn shown(&self) -> String {
        // A suggested command must not be split over two lines, and no word may be split at all.
        let help = self.report.help().map(|help| help.to_string());
        let is_pasted = help.is_some_and(|help| help.contains(hint::OPENING));
        let mut options = MietteHandlerOpts::new().break_words(false).wrap_lines(!is_pasted);
        if !std::io::stderr().is_terminal() {
            // In a log, a suggested command must not be split over two lines.
            options = options.width(usize::from(u16::MAX)).unicode(true).color(false);
        }
        let handler = options.build();
        format!("{:?}", Shown { handler, report: &self.report })
    }
}

impl Failure {
    /// Prints the text to standard error, if that can be written.
    pub fn print(&self) {
        note_text!("{}", self.shown());
    }
}

/// A report with the handler that draws it.
struct Shown<'a> {
    handler: MietteHandler,
    report: &'a Report,
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diagnostic: &dyn Diagnostic = self.report.as_ref();
        self.handler.debug(diagnostic, f)
    }
}

/// Keeps the first of several failures for the end of the command, and prints the others at once.
pub(crate) fn first(before: Option<Failure>, failure: Failure) -> Option<Failure> {
    if before.is_some() {
        failure.print();
        return before;
    }
    Some(failure)
}

/// Returns the exit code for a fault: a temporary one may pass, others need a change.
pub(crate) fn exit_of(fault: Fault) -> Exit {
    if fault.is_temporary() { Exit::Unavailable } else { Exit::Usage }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self { exit: Exit::Usage, report: Report::new(error) }
    }
}

impl From<InvalidSetting> for Failure {
    fn from(error: InvalidSetting) -> Self {
        Self::new(Exit::Usage, error)
    }
}

impl From<LogError> for Failure {
    /// Converts an error of the log, whose text already contains that of the client library.
    fn from(error: LogError) -> Self {
        Self::new(exit_of(error.fault()), outage::told(&error.to_string()))
    }
}

impl From<MigrateError> for Failure {
    fn from(error: MigrateError) -> Self {
        LogError::from(error).into()
    }
}

impl From<SchemaError> for Failure {
    fn from(error: SchemaError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

impl From<OperateError> for Failure {
    fn from(error: OperateError) -> Self {
        let exit = match error.kind() {
            OperateErrorKind::Unavailable => Exit::Unavailable,
            OperateErrorKind::Broken => Exit::Broken,
            _ => Exit::Usage,
        };
        match error.help() {
            Some(help) => Self::with_help(exit, &error, help),
            None => Self::new(exit, error),
        }
    }
}

impl From<std::io::Error> for Failure {
    /// Reports that standard output could not be written.
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Unavailable, format_args!("the output could not be written: {error}"))
    }
}
