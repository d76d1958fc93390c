//! The databases that may have idempotency keys and sagas: those of pipelines and inboxes.

use std::collections::BTreeMap;

use operate::tables::Tables;
use operate::{InboxConfig, PipelineConfig};
use outbox_log::LogOptions;

use super::super::answer::Problem;
use super::super::app::App;

/// Maximum number of databases that one request queries at once. Those that do not answer together
/// take as long as one.
pub(crate) const ASKED_MAX: usize = 32;

/// A database, with its name in forms.
pub(crate) struct NamedTables {
    /// `pipeline:orders`, `inbox:billing`, `inbox:billing at db1.internal:5432/billing`.
    pub(crate) name: String,
    /// The database, or the reason why it cannot be found.
    pub(crate) tables: Result<Tables, String>,
}

/// Returns all databases, each once and each with a unique name.
pub(crate) fn all(pipelines: &[PipelineConfig], inboxes: &[InboxConfig]) -> Vec<NamedTables> {
    let mut found: Vec<NamedTables> = Vec::new();
    let mut add = |name: String, tables: Result<Tables, String>| {
        let is_known = |other: &NamedTables| match (&other.tables, &tables) {
            // Compared by location only: pipelines and inboxes connect with different users.
            (Ok(other), Ok(tables)) => other.location() == tables.location(),
            _ => false,
        };
        if !found.iter().any(is_known) {
            found.push(NamedTables { name, tables });
        }
    };
    for pipeline in pipelines {
        let url = pipeline.database.url().map_err(|error| error.to_string());
        let tables = url.map(|url| Tables::new(url, pipeline.database.options().clone()));
        add(format!("pipeline:{}", pipeline.name), tables);
    }
    for inbox in inboxes {
        let options =
            LogOptions::default().schema(inbox.schema.clone()).allow_plaintext(inbox.allow_plaintext);
        let url = inbox.url.load("verify.inbox.url").map_err(|error| error.to_string());
        add(format!("inbox:{}", inbox.consumer), url.map(|url| Tables::new(url, options)));
    }
    tell_apart(&mut found);
    found
}

/// Gives databases that share a name unique names. A consumer may have a database for each shard,
/// and a decision must reach the database that it was made for.
///
/// The location stays the same after restarts, in any order of the configuration. No database keeps
/// the short name: a link from an earlier configuration then finds no database instead of another
/// one.
fn tell_apart(found: &mut [NamedTables]) {
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for tables in &*found {
        *taken.entry(tables.name.clone()).or_default() += 1;
    }
    let mut without_location: BTreeMap<String, usize> = BTreeMap::new();
    for NamedTables { name, tables } in found.iter_mut().filter(|it| taken[&it.name] > 1) {
        *name = match tables {
            Ok(tables) => format!("{name} at {}", tables.location()),
            // These databases are shown with their errors. No decision can reach them.
            Err(_) => {
                let count = without_location.entry(name.clone()).or_default();
                *count += 1;
                format!("{name} without a database ({count})")
            }
        };
    }
}

/// Returns the database with this name.
pub(crate) fn named(app: &App, name: &str) -> Result<Tables, Problem> {
    let found = all(&app.pipelines, &app.inboxes).into_iter().find(|it| it.name == name);
    let unknown = || Problem::bad(format!("no database is called {name:?} here"));
    found
        .ok_or_else(unknown)?
        .tables
        .map_err(|error| Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(place: Result<&str, &str>) -> NamedTables {
        let tables = place.map(|url| Tables::new(url.into(), LogOptions::default()));
        NamedTables { name: String::from("inbox:billing"), tables: tables.map_err(str::to_owned) }
    }

    fn names(found: &mut [NamedTables]) -> Vec<&str> {
        tell_apart(found);
        found.iter().map(|tables| tables.name.as_str()).collect()
    }

    #[test]
    fn databases_of_one_consumer_are_told_apart_by_their_location() {
        let one = Ok("postgres://ann:secret@localhost:1/bills");
        let two = Ok("postgres://127.0.0.1:2/bills");
        assert_eq!(names(&mut [inbox(one)]), ["inbox:billing"]);
        let expected = ["inbox:billing at localhost:1/bills", "inbox:billing at 127.0.0.1:2/bills"];
        assert_eq!(names(&mut [inbox(one), inbox(two)]), expected);
        // The order of the configuration changes no name.
        assert_eq!(names(&mut [inbox(two), inbox(one)]), [expected[1], expected[0]]);
        let lost =
            ["inbox:billing without a database (1)", expected[0], "inbox:billing without a database (2)"];
        assert_eq!(names(&mut [inbox(Err("no file")), inbox(one), inbox(Err("no file"))]), lost);
    }
}
