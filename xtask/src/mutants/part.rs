//! A part of the breakages, for whoever has not the time for all.

use super::{copy, patch::Patch};
use crate::workspace;
use std::{fmt, str::FromStr};

/// Every `of`th breakage, beginning with this one; from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// The part of the present commit: another one at the next, the same for whoever looks again.
    pub(super) fn of_commit(of: usize) -> Result<Self, String> {
        let commit = copy::git(&workspace::root()?, ["rev-parse", "HEAD"])?;
        let first = commit.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let first = first.ok_or_else(|| format!("git tells no commit: {commit:?}"))?;
        Ok(Self { number: first % of + 1, of })
    }

    /// Those of them that belong to this part.
    pub(super) fn take(self, patches: Vec<Patch>) -> Vec<Patch> {
        patches.into_iter().skip(self.number - 1).step_by(self.of).collect()
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
        part.ok_or_else(|| format!("{text:?} is no part: write 2/4 for the second of four"))
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
    use crate::mutants::patch;

    #[test]
    fn the_parts_are_all_of_it_and_nothing_twice() {
        let all = patch::all().expect("patches");
        let parts = ["1/3", "2/3", "3/3"]
            .map(|part| part.parse::<Part>().expect("a part").take(patch::all().expect("patches")));
        let mut names: Vec<String> = parts.into_iter().flatten().map(|patch| patch.name).collect();
        names.sort();
        let mut expected: Vec<String> = all.into_iter().map(|patch| patch.name).collect();
        expected.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["", "2", "0/4", "5/4", "1/0", "a/b"] {
            assert!(text.parse::<Part>().unwrap_err().contains("2/4"), "{text}");
        }
    }
}
