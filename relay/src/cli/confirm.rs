//! Confirmation by the person at the terminal.

use std::io::{IsTerminal as _, Write as _};

use super::exit::Exit;
use super::failure::Failure;

/// Asks a person. Fails without a terminal, so that nothing is decided.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let help = "add --yes to skip the confirmation";
        return Err(Failure::with_help(
            Exit::Usage,
            format_args!("{question} confirmation is needed, but stdin is not a terminal"),
            help,
        ));
    }
    note_text!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
