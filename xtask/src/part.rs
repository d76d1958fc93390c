//! A part of many similar things, for when there is no time for all.

use std::{fmt, str::FromStr};

/// Every `of`th item, beginning with item `number`, counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// Returns the items that belong to this part.
    pub(crate) fn take<T>(self, all: Vec<T>) -> Vec<T> {
        all.into_iter().skip(self.number - 1).step_by(self.of).collect()
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |(number, of): (&str, &str)| {
            let part = Self { number: number.parse().ok()?, of: of.parse().ok()? };
            (1..=part.of).contains(&part.number).then_some(part)
        };
        let part = text.split_once('/').and_then(read);
        part.ok_or_else(|| format!("{text:?} is not a part: write 2/4 for the second of four"))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_all_of_it_and_nothing_twice() {
        let all: Vec<u8> = (0..10).collect();
        let parts = ["1/3", "2/3", "3/3"].map(|part| part.parse::<Part>().expect("a part").take(all.clone()));
        let mut found: Vec<u8> = parts.into_iter().flatten().collect();
        found.sort_unstable();
        assert_eq!(found, all);
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["", "2", "0/4", "5/4", "1/0", "a/b"] {
            assert!(text.parse::<Part>().unwrap_err().contains("2/4"), "{text}");
        }
    }
}
