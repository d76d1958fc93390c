//! The frame of a request: its user, and the counts in the navigation.
//!
//! The gate sets it around the handler. Pages are rendered in the task of their request, so no
//! handler hands it on, and an error page has the same frame as any other. Without it, in the login
//! form and in tests, a page has no navigation.

use std::sync::Arc;

use operate::Operator;
use tokio::sync::watch;

use super::text::count;

tokio::task_local! {
    static CONTEXT: Context;
    static PREFIX: Arc<str>;
}

/// The frame's part of a request.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) operator: Operator,
    pub(crate) nav: watch::Receiver<Arc<Nav>>,
    /// The token of every form, if the page runs behind the login of an application; without one,
    /// the page has its own login.
    pub(crate) form_token: Option<String>,
    /// Whether the page can end the login.
    pub(crate) has_logout: bool,
    /// The path of the request, below the prefix.
    pub(crate) path: String,
}

impl Context {
    /// Returns the context of a user of the page's own login.
    pub(crate) fn own(operator: Operator, nav: watch::Receiver<Arc<Nav>>) -> Self {
        Self { operator, nav, form_token: None, has_logout: true, path: String::new() }
    }
}

/// Runs a request within its context.
pub(crate) async fn within<F: Future>(context: Context, request: F) -> F::Output {
    CONTEXT.scope(context, request).await
}

/// Runs a request of a page that is mounted at a prefix.
pub(crate) async fn below<F: Future>(prefix: Arc<str>, request: F) -> F::Output {
    PREFIX.scope(prefix, request).await
}

/// Returns the prefix of the current request's page; empty for a page at the root.
pub(crate) fn prefix() -> Arc<str> {
    PREFIX.try_with(Arc::clone).unwrap_or_default()
}

/// Returns the context of the current request, if it has a user.
pub(crate) fn current() -> Option<Context> {
    CONTEXT.try_with(Clone::clone).ok()
}

/// The counts in the navigation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Nav {
    /// Dead messages of outboxes, and dead letters of inboxes.
    pub(crate) dead: NavCount,
    pub(crate) held: NavCount,
    /// Idempotency keys whose holder has disappeared.
    pub(crate) keys: NavCount,
    /// Stuck sagas.
    pub(crate) sagas: NavCount,
}

/// One count in the navigation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NavCount {
    pub(crate) number: u64,
    /// Whether there are more: not all were counted.
    pub(crate) is_at_least: bool,
    /// Whether a place is missing from it.
    pub(crate) is_partial: bool,
    /// Whether a place is missing because the database user may not read it.
    pub(crate) is_denied: bool,
}

impl NavCount {
    /// Adds the count of one place; `None` for one that does not answer.
    pub(crate) fn add(&mut self, number: Option<u64>, is_at_least: bool) {
        self.is_partial |= number.is_none();
        self.number += number.unwrap_or_default();
        self.is_at_least |= is_at_least && number.is_some();
    }

    /// Returns whether all that is known of it is that the database user may not read it.
    pub(crate) fn is_only_denied(self) -> bool {
        self.number == 0 && self.is_denied && !self.is_partial
    }

    /// Returns its text: `2,009`, `≥ 100,000`, `2,009 + ?`, `?` for an unknown count, `no right` if
    /// nothing could be read for want of one. `None` for zero.
    pub(crate) fn text(self) -> Option<String> {
        let least = if self.is_at_least { "≥ " } else { "" };
        let more = if self.is_partial || self.is_denied { " + ?" } else { "" };
        if self.number == 0 {
            let unknown = if self.is_partial { "?" } else { "no right" };
            return (self.is_partial || self.is_denied).then(|| unknown.to_owned());
        }
        Some(format!("{least}{}{more}", count(self.number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_tells_what_it_does_not_know() {
        let text = |places: &[Option<u64>], is_at_least| {
            let mut sum = NavCount::default();
            places.iter().for_each(|place| sum.add(*place, is_at_least));
            sum.text()
        };
        assert_eq!(text(&[Some(2_000), Some(9)], false).as_deref(), Some("2,009"));
        assert_eq!(text(&[Some(2_009), None], false).as_deref(), Some("2,009 + ?"));
        assert_eq!(text(&[Some(100_000)], true).as_deref(), Some("≥ 100,000"));
        assert_eq!(text(&[Some(0)], false), None);
        assert_eq!(text(&[None], true).as_deref(), Some("?"));
        assert_eq!(text(&[Some(0), None], false).as_deref(), Some("?"));
        let denied = |number| NavCount { number, is_denied: true, ..NavCount::default() };
        assert_eq!([0, 2].map(|number| denied(number).text().unwrap()), ["no right", "2 + ?"]);
        let both = NavCount { is_partial: true, ..denied(0) };
        assert_eq!(both.text().as_deref(), Some("?"));
    }
}
