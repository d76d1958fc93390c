//! The databases that may have idempotency keys and sagas, by their names in links and forms.

use axum::http::StatusCode;
use operate::named_tables;
use operate::tables::Tables;

use super::super::answer::Problem;
use super::super::app::App;

/// Maximum number of databases that one request queries at once. Those that do not answer together
/// take as long as one.
pub(crate) const ASKED_MAX: usize = 32;

/// Returns the database with this name.
pub(crate) fn named(app: &App, name: &str) -> Result<Tables, Problem> {
    let found = named_tables(&app.pipelines, &app.inboxes).into_iter().find(|it| it.name == name);
    let unknown = || Problem::bad(format!("no database is called {name:?} here"));
    found.ok_or_else(unknown)?.tables.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error))
}
