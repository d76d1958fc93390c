//! A long list, one slice at a time.

use maud::{Markup, html};

use super::super::address::with_query;
use super::super::answer::Problem;
use super::super::fields::Fields;
use super::super::layout::count;

/// Rows per slice.
pub(crate) const ROWS: usize = 100;

/// One slice of a complete list.
pub(crate) struct Piece<'a, T> {
    /// The rows.
    pub(crate) rows: &'a [T],
    number: usize,
    all: usize,
}

/// Returns the slice that the field `page` names, counted from 1.
pub(crate) fn piece<'a, T>(fields: &Fields, all: &'a [T]) -> Result<Piece<'a, T>, Problem> {
    let number = fields.read::<usize>("page")?.unwrap_or(1).max(1);
    let from = number.saturating_sub(1).saturating_mul(ROWS).min(all.len());
    let to = from.saturating_add(ROWS).min(all.len());
    Ok(Piece { rows: all.get(from..to).unwrap_or_default(), number, all: all.len() })
}

impl<T> Piece<'_, T> {
    /// Renders the links to the previous and the next slice, if they exist.
    pub(crate) fn links(&self, path: &str, kept: &[(&str, &str)]) -> Markup {
        let to = |number: usize| {
            let number = number.to_string();
            with_query(path, &[kept, &[("page", number.as_str())]].concat())
        };
        let last = self.all.div_ceil(ROWS).max(1);
        html! {
            @if last > 1 {
                nav class="pieces" aria-label="Pages of the list" {
                    @if self.number > 1 { a href=(to(self.number - 1)) rel="prev" { "← Previous" } }
                    span class="faint" { (self.number) " of " (last) " · " (count(self.all as u64)) " rows" }
                    @if self.number < last { a href=(to(self.number + 1)) rel="next" { "Next →" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_rows_are_a_hundred_pieces() {
        let all: Vec<usize> = (0..10_000).collect();
        let fields = |page: &str| serde_json::from_value(serde_json::json!([["page", page]])).unwrap();
        assert_eq!(piece(&fields("2"), &all).unwrap().rows, &all[100..200]);
        let last = piece(&fields("100"), &all).unwrap();
        let links = last.links("/topics", &[("q", "a&b")]).into_string();
        assert!(links.contains("/topics?q=a%26b&amp;page=99") && !links.contains("Next"), "{links}");
        assert!(piece(&fields("101"), &all).unwrap().rows.is_empty());
        assert!(piece(&fields("18446744073709551615"), &all).unwrap().rows.is_empty());
        assert!(piece(&fields("x"), &all).is_err());
    }
}
