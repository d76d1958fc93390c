//! `--require all|none|<list>`: which services must be there.

use crate::services::Name;
use clap::ValueEnum;
use std::{fmt, str::FromStr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Require {
    All,
    None,
    These(Vec<Name>),
}

impl Require {
    pub(crate) fn includes(&self, name: Name) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::These(names) => names.contains(&name),
        }
    }
}

impl fmt::Display for Require {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => out.write_str("all"),
            Self::None => out.write_str("none"),
            Self::These(names) => {
                let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
                out.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for Require {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            list => list
                .split(',')
                .map(|name| {
                    Name::from_str(name, false)
                        .map_err(|_| format!("{name:?} is not a service: use all, none, or a list of postgres, pgbouncer, kafka, rabbitmq, sqs"))
                })
                .collect::<Result<_, _>>()
                .map(Self::These),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_parsed() {
        assert_eq!("all".parse(), Ok(Require::All));
        assert_eq!("none".parse(), Ok(Require::None));
        assert_eq!("kafka,sqs".parse(), Ok(Require::These(vec![Name::Kafka, Name::Sqs])));
        for text in ["all", "none", "kafka,sqs"] {
            assert_eq!(text.parse::<Require>().map(|require| require.to_string()).as_deref(), Ok(text));
        }
        let error = "kafka,oracle".parse::<Require>().expect_err("unknown");
        assert!(error.contains("\"oracle\" is not a service"), "{error}");
    }
}
