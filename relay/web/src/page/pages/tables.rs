//! The databases that may have idempotency keys and sagas: those of pipelines and inboxes.

use operate::tables::Tables;
use outbox_log::LogOptions;

use super::super::answer::Problem;
use super::super::app::App;

/// A database, with its name in forms.
pub(crate) struct NamedTables {
    /// `pipeline:orders`, `inbox:billing`.
    pub(crate) name: String,
    /// The database, or the reason why it cannot be found.
    pub(crate) tables: Result<Tables, String>,
}

/// Returns all databases, each once.
pub(crate) fn all(app: &App) -> Vec<NamedTables> {
    let mut found: Vec<NamedTables> = Vec::new();
    let mut add = |name: String, tables: Result<Tables, String>| {
        let is_known = |other: &NamedTables| match (&other.tables, &tables) {
            // Compared by location only: pipelines and inboxes connect with different users.
            (Ok(other), Ok(tables)) => {
                other.place() == tables.place() && other.options.schema == tables.options.schema
            }
            _ => false,
        };
        if !found.iter().any(is_known) {
            found.push(NamedTables { name, tables });
        }
    };
    for pipeline in &app.pipelines {
        let url = pipeline.database.url().map_err(|error| error.to_string());
        let tables = url.map(|url| Tables::new(url, pipeline.database.options().clone()));
        add(format!("pipeline:{}", pipeline.name), tables);
    }
    for inbox in &app.inboxes {
        let options =
            LogOptions::default().schema(inbox.schema.clone()).allow_plaintext(inbox.allow_plaintext);
        let url = inbox.url.load("verify.inbox.url").map_err(|error| error.to_string());
        add(format!("inbox:{}", inbox.consumer), url.map(|url| Tables::new(url, options)));
    }
    found
}

/// Returns the database with this name.
pub(crate) fn named(app: &App, name: &str) -> Result<Tables, Problem> {
    let found = all(app).into_iter().find(|it| it.name == name);
    let unknown = || Problem::bad(format!("no database is called {name:?} here"));
    found
        .ok_or_else(unknown)?
        .tables
        .map_err(|error| Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, error))
}
