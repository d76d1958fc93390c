//! A filter or a search above a list: folded, with the conditions that are set in its summary.

use maud::{Markup, html};

use super::super::address::to;
use super::super::layout::whole;

/// A form that is folded.
pub(super) struct FilterBox<'a> {
    /// Its name: `Filter`.
    pub(super) name: &'a str,
    /// The conditions that are set, in words: `topic orders`.
    pub(super) told: &'a [String],
    /// The path of the list without conditions.
    pub(super) list: &'a str,
    pub(super) is_open: bool,
}

impl FilterBox<'_> {
    /// Renders it around its form.
    pub(super) fn around(&self, form: &Markup) -> Markup {
        html! {
            div class="filter-row" {
                details class="filter-box" id="conditions" open[self.is_open] {
                    summary { (self.name) @if !self.told.is_empty() { ": " (whole(&self.told.join(" · "))) } }
                    (form)
                }
                @if !self.told.is_empty() { a href=(to(self.list)) { "Clear" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read_without_opening_it() {
        let told = [String::from("topic <b>"), String::from("state retrying")];
        let text = |told: &[String]| {
            let box_ = FilterBox { name: "Filter", told, list: "/dead", is_open: false };
            box_.around(&html! { form {} }).into_string()
        };
        let set = text(&told);
        assert!(
            set.contains("Filter: <span class=\"text\">topic &lt;b&gt; · state retrying</span>"),
            "{set}"
        );
        assert!(set.contains("<a href=\"/dead\">Clear</a>"), "{set}");
        assert!(!text(&[]).contains("Clear") && text(&[]).contains("<summary>Filter</summary>"));
    }
}
