//! Reads a statement of a script word by word.

use super::{ObjectKind, PUBLIC};
use crate::roles::Roles;

/// The words of a statement that are not read yet. Parentheses and commas are words.
pub(super) struct Words<'t> {
    words: std::iter::Peekable<std::vec::IntoIter<&'t str>>,
}

impl<'t> Words<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let is_mark = |c| matches!(c, '(' | ')' | ',');
        let of_word = |word: &'t str| {
            word.split_inclusive(is_mark).flat_map(move |piece| {
                let (word, mark) = piece.split_at(piece.trim_end_matches(is_mark).len());
                [word, mark]
            })
        };
        let words: Vec<&str> =
            text.split_whitespace().flat_map(of_word).filter(|word| !word.is_empty()).collect();
        Self { words: words.into_iter().peekable() }
    }

    pub(super) fn next(&mut self) -> Option<&'t str> {
        self.words.next()
    }

    pub(super) fn expect(&mut self, word: &str) -> Option<()> {
        self.words.next_if(|next| *next == word).map(drop)
    }

    /// Reads elements with commas between them.
    pub(super) fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut elements = vec![element(self)?];
        while self.expect(",").is_some() {
            elements.push(element(self)?);
        }
        Some(elements)
    }

    /// Reads the rest of a list in parentheses, which may be empty.
    pub(super) fn until_closed(&mut self) -> Option<Vec<String>> {
        if self.expect(")").is_some() {
            return Some(Vec::new());
        }
        let is_name = |word: &&str| !matches!(*word, "(" | ")" | ",");
        let elements = self.list(|words| words.words.next_if(is_name).map(str::to_owned))?;
        self.expect(")")?;
        Some(elements)
    }

    pub(super) fn objects(&mut self) -> Option<(ObjectKind, Vec<String>)> {
        use ObjectKind::{Function, Partitions, Schema, Sequence, Table};
        let named =
            [("SCHEMA", Schema), ("PARTITIONS", Partitions), ("SEQUENCE", Sequence), ("FUNCTION", Function)];
        let found = named.into_iter().find(|(word, _)| self.expect(word).is_some());
        let kind = found.map_or(Table, |(_, kind)| kind);
        let objects = self.list(|words| {
            let name = words.next()?.strip_prefix("{schema}")?;
            if kind == Function {
                words.expect("(")?;
                return Some(format!("{name}({})", words.until_closed()?.join(", ")));
            }
            (name.is_empty() == (kind == Schema)).then(|| name.to_owned())
        })?;
        Some((kind, objects))
    }

    /// Reads the roles, which end a statement.
    pub(super) fn roles(mut self) -> Option<Vec<&'static str>> {
        let standard = Roles::standard();
        let roles = self.list(|words| {
            let word = words.next()?;
            if word == "PUBLIC" {
                return Some(PUBLIC);
            }
            let name = word.strip_prefix('{')?.strip_suffix('}')?;
            standard.named().into_iter().map(|(role, _)| role).find(|role| *role == name)
        })?;
        self.next().is_none().then_some(roles)
    }
}
