//! The definition of the command line with its help: examples below each command, and options of
//! most commands at the end.

use clap::{Command, CommandFactory as _};

use super::Cli;
use super::examples;

/// Options of most commands. The help lists them after the command's own options.
const GENERAL: [&str; 3] = ["config", "output", "pipeline"];

/// Returns the definition of the command line.
pub(crate) fn command() -> Command {
    arranged(Cli::command(), "")
}

/// Arranges a command and its subcommands. `path` holds the command's words after `relay`.
fn arranged(command: Command, path: &str) -> Command {
    let command = command.mut_args(|argument| match argument.get_long() {
        Some(name) if GENERAL.contains(&name) => argument.help_heading("General options"),
        _ => argument,
    });
    let command = match examples::of(path) {
        Some(lines) => command.after_help(format!("Examples:\n  {}", lines.join("\n  "))),
        None => command,
    };
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        arranged(below, path.trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands without subcommands that a reader of the help sees.
    fn leaves(command: &Command, path: &str) -> Vec<String> {
        let below: Vec<&Command> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        if below.is_empty() {
            return vec![path.trim_start().to_owned()];
        }
        below.iter().flat_map(|below| leaves(below, &format!("{path} {}", below.get_name()))).collect()
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_three_examples_that_it_accepts() {
        for path in leaves(&command(), "") {
            // The demo has its own.
            if path == "demo" {
                continue;
            }
            let lines = examples::of(&path).unwrap_or_else(|| panic!("no example of relay {path}"));
            for line in lines {
                assert!(line.starts_with(&format!("relay {path}")), "{path}: {line}");
                // The rest is for the shell.
                let line = line.split(" | ").next().and_then(|line| line.split(" > ").next()).unwrap();
                let words = shlex::split(line).unwrap();
                if let Err(error) = command().try_get_matches_from(words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    #[test]
    fn every_example_belongs_to_a_command() {
        let known = leaves(&command(), "");
        for (path, _) in examples::ALL {
            let is_built = cfg!(feature = "postgres") || !path.starts_with("adopt");
            assert!(!is_built || known.iter().any(|known| known == path), "{path}");
        }
    }

    #[test]
    fn options_of_most_commands_stand_at_the_end() {
        let mut command = command();
        command.build();
        let retention = command.find_subcommand_mut("retention").unwrap();
        let help = retention.render_help().to_string();
        let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text} is not in {help}"));
        let own = [place("--keep"), place("--dry-run"), place("--note")];
        let general = [place("--config"), place("--pipeline"), place("--output")];
        assert!(own.iter().max() < general.iter().min(), "{help}");
        assert!(general.iter().max() < Some(&place("Examples:")), "{help}");
    }
}
