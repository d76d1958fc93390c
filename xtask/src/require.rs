//! `--require all|none|<list>`: which services must be there.

use crate::services::Name;
use clap::ValueEnum;
use std::str::FromStr;

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
                        .map_err(|_| format!("{name:?} is no service: use all, none, or a list of postgres, pgbouncer, kafka, rabbitmq, sqs"))
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
        let error = "kafka,oracle".parse::<Require>().expect_err("unknown");
        assert!(error.contains("\"oracle\" is no service"), "{error}");
    }
}
