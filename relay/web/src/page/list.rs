//! A list: rows of a table on a screen, cards on a phone, from the same elements by style alone.

use maud::{Markup, html};

/// A column of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// Content of a column. It decides the width in a row, and the position on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A box to check.
    Choice,
    /// The name of the row.
    Name,
    /// An ordering key, or another second name.
    Key,
    /// A short text.
    Text,
    /// An error or a reason: takes the rest of a row.
    Why,
    /// A badge.
    State,
    Number,
    Time,
    /// Buttons.
    Act,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Choice => "choice",
            Self::Name => "name",
            Self::Key => "key",
            Self::Text => "short",
            Self::Why => "why",
            Self::State => "state",
            Self::Number => "number",
            Self::Time => "time",
            Self::Act => "act",
        }
    }

    /// Returns whether its name is for screen readers only: the cells speak for themselves.
    fn is_evident(self) -> bool {
        matches!(self, Self::Choice | Self::Act)
    }
}

/// Creates a column.
pub(crate) const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind }
}

/// Renders a list with a cell for each column in every row. `label` names it for screen readers.
pub(crate) fn list(label: &str, columns: &[Column], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    html! {
        table class="list" aria-label=(label) {
            thead { tr { @for Column { name, kind } in columns {
                th scope="col" class=(kind.class()) {
                    @if kind.is_evident() { span class="hidden" { (name) } } @else { (name) }
                }
            } } }
            tbody { @for row in rows { tr { @for (Column { name, kind }, cell) in columns.iter().zip(row) {
                @if *kind == Kind::Name {
                    th scope="row" class="name" data-label=(name) { (cell) }
                } @else {
                    td class=(kind.class()) data-label=(name) { (cell) }
                }
            } } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_knows_its_column() {
        let columns =
            [column("Choose", Kind::Choice), column("Topic", Kind::Name), column("Error", Kind::Why)];
        let text = list("Messages", &columns, [vec![html! { "x" }, html! { ("<t>") }, html! { "no route" }]]);
        let text = text.into_string();
        assert!(
            text.contains("<th scope=\"row\" class=\"name\" data-label=\"Topic\">&lt;t&gt;</th>"),
            "{text}"
        );
        assert!(text.contains("data-label=\"Error\">no route</td>"), "{text}");
        assert!(text.contains("<span class=\"hidden\">Choose</span>"), "{text}");
    }
}
