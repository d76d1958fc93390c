//! A line of several versions that only tests have. The released lines have too few versions to
//! show how a database moves from one to the next.

use migrations::{Backend, Line, Migration, Migrator};
use sqlx::Postgres;

const TABLE: Migration = Migration {
    version: 1,
    name: "0001_table",
    template: "CREATE TABLE {schema}outbox_practice (id integer PRIMARY KEY, body text NOT NULL);",
};

/// Changes a table and converts its rows.
const BYTES: Migration = Migration {
    version: 2,
    name: "0002_bytes",
    template: "ALTER TABLE {schema}outbox_practice ADD COLUMN bytes integer NOT NULL DEFAULT 0;
        UPDATE {schema}outbox_practice SET bytes = octet_length(body);",
};

const INDEX: Migration = Migration {
    version: 3,
    name: "0003_index",
    template: "CREATE INDEX outbox_practice_bytes_idx ON {schema}outbox_practice (bytes);",
};

static VERSIONS: [Migration; 3] = [TABLE, BYTES, INDEX];

/// The second version with different content.
static EDITED: [Migration; 3] = [
    TABLE,
    Migration {
        template: "ALTER TABLE {schema}outbox_practice ADD COLUMN bytes bigint NOT NULL DEFAULT 0;",
        ..BYTES
    },
    INDEX,
];

/// The third version fails after a part of it is done.
static FAILING: [Migration; 3] = [
    TABLE,
    BYTES,
    Migration {
        template: "CREATE INDEX outbox_practice_bytes_idx ON {schema}outbox_practice (bytes);
            INSERT INTO {schema}outbox_practice (id, body) SELECT id, body FROM {schema}outbox_practice;",
        ..INDEX
    },
];

/// Stores the time limits of the transaction that applies it.
static LIMITED: [Migration; 1] = [Migration {
    version: 1,
    name: "0001_limits",
    template:
        "CREATE TABLE {schema}outbox_practice AS SELECT current_setting('statement_timeout') AS statement,
        current_setting('idle_in_transaction_session_timeout') AS idle,
        coalesce(current_setting('transaction_timeout', true), '0') AS transaction;",
}];

/// Waits for a table that the test has locked.
static WAITING: [Migration; 1] = [Migration {
    version: 1,
    name: "0001_waiting",
    template: "CREATE TABLE {schema}outbox_practice AS SELECT * FROM gate;",
}];

/// All versions of the line.
pub(super) const ALL: usize = VERSIONS.len();

/// Returns the migrator of a program that knows the first versions. It records them under the line
/// of the outbox.
pub(super) fn program<DB: Backend>(versions: usize) -> Migrator<DB> {
    Migrator::with_migrations(Line::Outbox, &VERSIONS[..versions])
}

/// Returns the migrator of a program that stores its time limits; PostgreSQL only.
pub(super) fn limited() -> Migrator<Postgres> {
    Migrator::with_migrations(Line::Outbox, &LIMITED)
}

/// Returns the migrator of a program that waits for the table `gate`.
pub(super) fn waiting() -> Migrator<Postgres> {
    Migrator::with_migrations(Line::Outbox, &WAITING)
}

/// Returns the migrator of a program whose second version differs.
pub(super) fn edited<DB: Backend>() -> Migrator<DB> {
    Migrator::with_migrations(Line::Outbox, &EDITED)
}

/// Returns the migrator of a program whose third version fails on a table with rows.
pub(super) fn failing<DB: Backend>() -> Migrator<DB> {
    Migrator::with_migrations(Line::Outbox, &FAILING)
}
