//! Command lines that cannot be read, where a sentence helps more than the usage of the command.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::exit::Exit;
use super::failure::Failure;
use crate::near::nearest;

/// Returns the refusal of options that exclude each other; `None` for other errors. The usage, with
/// all options of the command, does not say which of them to leave out.
pub(super) fn conflict(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let ContextValue::String(one) = error.get(ContextKind::InvalidArg)? else { return None };
    let others = match error.get(ContextKind::PriorArg)? {
        ContextValue::String(other) => vec![other.as_str()],
        ContextValue::Strings(others) => others.iter().map(String::as_str).collect(),
        _ => return None,
    };
    // The same option twice has an error of its own.
    if others.contains(&one.as_str()) {
        return None;
    }
    let has_id = others.iter().chain([&one.as_str()]).any(|name| name.starts_with("--id"));
    let help = if has_id {
        "an id names a message by itself: leave out the other conditions"
    } else {
        "leave out one of them"
    };
    let text = format!("{one} and {} cannot be used together", others.join(", "));
    Some(Failure::with_help(Exit::Usage, text, help))
}

/// Suggests only the closest command for a misspelt one, if one is close.
pub(super) fn with_the_closest(mut error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidSubcommand);
    let known = error.get(ContextKind::SuggestedSubcommand);
    if let (Some(ContextValue::String(word)), Some(ContextValue::Strings(known))) = (word, known)
        && let Some(closest) = nearest(word, known.iter().map(String::as_str))
    {
        let closest = ContextValue::Strings(vec![closest.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, closest);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::super::help;
    use super::*;

    fn error(line: &str) -> clap::Error {
        help::command().try_get_matches_from(shlex::split(line).unwrap()).unwrap_err()
    }

    #[test]
    fn options_that_exclude_each_other_are_refused_in_a_sentence() {
        let refused = conflict(&error("relay dead requeue --consumer billing --id 7 --note x")).unwrap();
        let shown = refused.shown();
        assert!(shown.contains("--consumer <NAME>") && shown.contains("--id <ID>"), "{shown}");
        assert!(shown.contains("cannot be used together"), "{shown}");
        assert!(shown.contains("an id names a message by itself"), "{shown}");
        assert!(!shown.contains("Usage") && refused.exit() == Exit::Usage, "{shown}");
        let other = conflict(&error("relay dead list --count --limit 7")).unwrap();
        assert!(other.shown().contains("leave out one of them"), "{}", other.shown());
        assert!(conflict(&error("relay status --pipeline a --pipeline b")).is_none(), "clap says it well");
        assert!(conflict(&error("relay statsu")).is_none());
    }

    #[test]
    fn the_closest_command_is_suggested_for_a_misspelt_one() {
        for (line, meant) in [("relay statsu", "'status'"), ("relay dead lsit", "'list'")] {
            let told = with_the_closest(error(line)).to_string();
            assert!(told.contains(&format!("a similar subcommand exists: {meant}")), "{told}");
        }
    }
}
