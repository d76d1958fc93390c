//! Refuses passwords in arguments: every user of a machine can read the arguments of a process.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use operate::redact::holds_password;

use super::exit::Exit;
use super::failure::Failure;

/// Refuses a URL with a password that was given as an argument of this command.
///
/// # Errors
/// [`Failure`] names the argument and the alternative, and never the value.
pub(super) fn refuse_passwords(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        refuse_passwords(command, matches)?;
    }
    for argument in command.get_arguments().filter(|argument| takes_url(argument)) {
        let id = argument.get_id().as_str();
        if matches.value_source(id) == Some(ValueSource::CommandLine)
            && let Some(mut values) = matches.get_raw(id)
            && values.any(|value| holds_password(&value.to_string_lossy()))
        {
            return Err(refusal(command, argument));
        }
    }
    Ok(())
}

fn takes_url(argument: &Arg) -> bool {
    argument.get_value_names().unwrap_or_default().iter().any(|name| name.ends_with("URL"))
}

fn refusal(command: &Command, argument: &Arg) -> Failure {
    let name = argument.get_long().unwrap_or_default();
    let file = format!("{name}-file");
    let has_file = command.get_arguments().any(|other| other.get_long() == Some(&file));
    let help = match argument.get_env() {
        Some(variable) if has_file => {
            format!("set {}, or write the URL to a file and pass --{file}", variable.display())
        }
        Some(variable) => format!("set {} instead", variable.display()),
        None => String::from("write it to the configuration, or to the file of a url_file setting"),
    };
    let text = format_args!(
        "--{name}: the URL contains a password, and every user of this machine can read the arguments of a process"
    );
    Failure::with_help(Exit::Usage, text, help)
}

#[cfg(test)]
mod tests {
    use super::super::Cli;

    /// Returns the refusal with its remedy.
    fn refused(arguments: &str) -> Option<String> {
        let words = std::iter::once("relay").chain(arguments.split(' '));
        Cli::read(words).err().map(|failure| failure.shown())
    }

    #[test]
    fn a_password_is_refused_wherever_a_url_is_an_argument() {
        let url = "postgres://u:s3cret@h/d";
        let variable = "RELAY_DATABASE_URL, or write the URL to a file and pass --database-file";
        for (command, remedy) in [
            ("migrate up --database", variable),
            ("migrate status --database", variable),
            ("migrate sql --database", variable),
            ("migrate roles --apply --database", variable),
            ("keys list --database", variable),
            ("sagas stuck --database", variable),
            ("init --name a --database", variable),
            ("init --name a --rabbitmq", "set RELAY_RABBITMQ_URL instead"),
            ("dead list --inbox", "set RELAY_INBOX_URL, or"),
            ("verify --inbox=a=sqlite:a.db --inbox", "url_file"),
            #[cfg(feature = "postgres")]
            ("adopt over --actor a --note b --database", variable),
            #[cfg(feature = "demo")]
            ("demo --database", "RELAY_DEMO_DATABASE"),
            #[cfg(feature = "demo")]
            ("demo --broker", "RELAY_DEMO_BROKER"),
        ] {
            let named = if command.starts_with("verify") { format!("b={url}") } else { url.to_owned() };
            let told =
                refused(&format!("{command} {named}")).unwrap_or_else(|| panic!("{command} is accepted"));
            assert!(told.contains(remedy) && told.contains("contains a password"), "{command}: {told}");
            assert!(!told.contains("s3cret"), "{command}: {told}");
        }
    }

    #[test]
    fn everything_else_is_accepted() {
        for arguments in [
            "migrate up --database postgres://owner@h/d?sslmode=verify-full",
            "migrate up --database-file /run/secrets/url",
            "init --rabbitmq amqp://guest@h",
            // Texts that look like URLs but are not used as such.
            "dead list --key https://u:s3cret@h",
        ] {
            assert_eq!(refused(arguments), None, "{arguments}");
        }
    }
}
