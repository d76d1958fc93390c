//! The old table according to the catalogs of a database. Reads only.

use outbox::ENQUEUED;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::PgConnection;
use sqlx::types::Json;

use super::roles::{self, EXECUTED};
use super::sql::{MARK_TRIGGER, TRIGGER, UPDATE_TRIGGER};
use crate::adoption::{Adoption, WhenSent};

/// The facts about the old table that an adoption needs.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) user: String,
    pub(super) home: Option<Home>,
    pub(super) table: Option<TableFacts>,
    /// Tables with this name in other schemas, or with another case.
    pub(super) elsewhere: Vec<String>,
    pub(super) columns: Vec<ColumnFacts>,
    pub(super) id_is_unique: bool,
    /// Tables that inherit from the table.
    pub(super) children: Vec<String>,
    pub(super) triggers: Vec<TriggerFacts>,
    pub(super) publications: Vec<PublicationFacts>,
    /// Roles that may insert into the old table but not append messages. Quoted where SQL needs it,
    /// like all names of roles here.
    pub(super) roles: Vec<String>,
    /// A function with the name of ours that exists in the table's schema and is not ours.
    pub(super) taken_function: Option<String>,
    /// Facts about the deletion of rows; empty if rows are marked.
    pub(super) deletion: Deletion,
}

/// Facts that decide whether a row can be deleted after its handover.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    /// The columns of the primary key.
    pub(super) primary_key: Vec<String>,
    /// Tables with foreign keys to the table.
    pub(super) referring: Vec<String>,
    /// Triggers and rules that may prevent the deletion of a row.
    pub(super) keeping: Vec<String>,
    /// Roles that may insert into the old table but not delete its rows by the primary key.
    pub(super) not_deleting: Vec<String>,
    /// Roles that may insert into the old table but delete no row, because of row level security.
    pub(super) without_policy: Vec<String>,
}

/// The outbox.
#[derive(Debug, Deserialize)]
pub(super) struct Home {
    pub(super) schema: String,
    /// Whether this user may append messages.
    pub(super) may_insert: bool,
    /// Whether this user may write the audit.
    pub(super) may_audit: bool,
    /// Whether the role `outbox_producer` has the rights of a producer here.
    pub(super) has_producer_role: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct TableFacts {
    pub(super) oid: i64,
    pub(super) schema: String,
    /// `pg_class.relkind`.
    pub(super) kind: String,
    pub(super) is_partition: bool,
    pub(super) is_temporary: bool,
    pub(super) owner: String,
    /// Whether this user has the owner's rights.
    pub(super) is_owner: bool,
    pub(super) may_create: bool,
    /// Whether rows are hidden from this user.
    pub(super) hides_rows: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct ColumnFacts {
    pub(super) name: String,
    /// The type as PostgreSQL prints it; for a domain, its base type.
    pub(super) type_name: String,
    /// `pg_type.typcategory`.
    pub(super) category: String,
    pub(super) is_not_null: bool,
    pub(super) is_generated: bool,
}

/// A trigger of an adoption, or another trigger that writes to an outbox.
#[derive(Debug, Deserialize)]
pub(super) struct TriggerFacts {
    pub(super) name: String,
    /// `pg_trigger.tgenabled`.
    pub(super) enabled: String,
    pub(super) function_schema: String,
    pub(super) function: String,
    pub(super) body: String,
    pub(super) comment: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PublicationFacts {
    pub(super) name: String,
    pub(super) is_for_all_tables: bool,
    pub(super) is_owner: bool,
    /// Whether it names the table.
    pub(super) names_table: bool,
    /// Whether it includes the table, by its name, by its schema, or as one of all tables.
    pub(super) has_table: bool,
    /// Whether it includes only some rows or columns of the table.
    pub(super) has_parts: bool,
}

/// Selects each row as JSON, so that columns are read by name.
macro_rules! rows {
    ($sql:literal) => {
        concat!("SELECT to_jsonb(f) FROM (", $sql, ") AS f")
    };
}

/// $1 is the schema, or null for the search path; $2 the columns that a producer inserts, $3 the
/// functions that it executes.
const HOME: &str = rows!(
    "
SELECT n.nspname::text AS schema,
    has_schema_privilege(n.oid, 'USAGE') AND coalesce((SELECT bool_and(has_column_privilege(c.oid, w.name, 'INSERT'))
        FROM unnest(string_to_array($2, ', ')) AS w(name)), false)
        AND NOT EXISTS (SELECT FROM pg_proc AS f WHERE f.pronamespace = n.oid AND f.proname = ANY ($3::text[])
            AND NOT has_function_privilege(f.oid, 'EXECUTE')) AS may_insert,
    coalesce((SELECT has_table_privilege(o.oid, 'INSERT') FROM pg_class AS o
        WHERE o.relname = 'outbox_operation' AND o.relnamespace = n.oid), false) AS may_audit,
    coalesce((SELECT has_schema_privilege(p.oid, n.oid, 'USAGE')
            AND bool_and(has_column_privilege(p.oid, c.oid, w.name, 'INSERT'))
            AND NOT EXISTS (SELECT FROM pg_proc AS f WHERE f.pronamespace = n.oid AND f.proname = ANY ($3::text[])
                AND NOT has_function_privilege(p.oid, f.oid, 'EXECUTE'))
        FROM pg_roles AS p, unnest(string_to_array($2, ', ')) AS w(name)
        WHERE p.rolname = 'outbox_producer' GROUP BY p.oid), false) AS has_producer_role
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'outbox_message' AND c.relkind IN ('r', 'p')
    AND CASE WHEN $1::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = $1 END"
);

/// $1 is the table; $2 its schema, or null for the search path.
const TABLE: &str = rows!(
    "
SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relkind::text AS kind,
    c.relispartition AS is_partition, c.relpersistence = 't' AS is_temporary,
    pg_get_userbyid(c.relowner)::text AS owner, pg_has_role(c.relowner, 'USAGE') AS is_owner,
    has_schema_privilege(n.oid, 'CREATE') AS may_create, row_security_active(c.oid) AS hides_rows
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND CASE WHEN $2::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = $2 END"
);

/// $1 is the table.
const ELSEWHERE: &str = "
SELECT n.nspname || '.' || c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_'
ORDER BY c.relname <> $1, 1";

/// $1 is the table.
const COLUMNS: &str = rows!(
    "
SELECT a.attname::text AS name, coalesce(nullif(t.typbasetype, 0), t.oid)::regtype::text AS type_name,
    t.typcategory::text AS category, a.attnotnull AS is_not_null, a.attgenerated <> '' AS is_generated
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
);

/// $1 is the table, $2 the column.
const UNIQUE: &str = "
SELECT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = $1::bigint::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
        AND i.indnkeyatts = 1 AND a.attname = $2)";

/// $1 is the table.
const PRIMARY_KEY: &str = "
SELECT a.attname::text FROM pg_index AS i, unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(number, place)
JOIN pg_attribute AS a ON a.attnum = k.number
WHERE i.indrelid = $1::bigint::oid AND a.attrelid = i.indrelid AND i.indisprimary ORDER BY k.place";

/// $1 is the table.
const REFERRING: &str = "
SELECT DISTINCT c.conrelid::regclass::text FROM pg_constraint AS c
WHERE c.confrelid = $1::bigint::oid AND c.contype = 'f' ORDER BY 1";

/// $1 is the table. Partitions do not count as children.
const CHILDREN: &str = "
SELECT i.inhrelid::regclass::text FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::bigint::oid AND NOT c.relispartition ORDER BY 1";

/// $1 is the table. 11 is a trigger BEFORE (2) DELETE (8) FOR EACH ROW (1), '4' a rule ON DELETE.
const KEEPING: &str = "
SELECT 'the trigger ' || quote_ident(t.tgname) FROM pg_trigger AS t
WHERE t.tgrelid = $1::bigint::oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 11 = 11
UNION ALL
SELECT 'the rule ' || quote_ident(w.rulename) FROM pg_rewrite AS w
WHERE w.ev_class = $1::bigint::oid AND w.ev_type = '4' AND w.is_instead AND w.ev_enabled IN ('O', 'A')
ORDER BY 1";

/// $1 is the table, $2 the names of an adoption's triggers.
const TRIGGERS: &str = rows!(
    "
SELECT t.tgname::text AS name, t.tgenabled::text AS enabled, n.nspname::text AS function_schema,
    p.proname::text AS function, p.prosrc AS body, obj_description(t.oid, 'pg_trigger') AS comment
FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE t.tgrelid = $1::bigint::oid AND NOT t.tgisinternal
    AND (t.tgname = ANY($2) OR p.prosrc ~ 'outbox_(enqueue|message)')
ORDER BY t.tgname"
);

/// $1 is the table.
const PUBLICATIONS: &str = rows!(
    "
SELECT p.pubname::text AS name, p.puballtables AS is_for_all_tables, pg_has_role(p.pubowner, 'USAGE') AS is_owner,
    r.prrelid IS NOT NULL AS names_table,
    EXISTS (SELECT FROM pg_publication_tables AS t JOIN pg_class AS c ON c.oid = $1::bigint::oid
            JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE t.pubname = p.pubname AND t.tablename = c.relname AND t.schemaname = n.nspname) AS has_table,
    -- columns of later versions of PostgreSQL
    coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL AS has_parts
FROM pg_publication AS p LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = $1::bigint::oid
ORDER BY p.pubname"
);

/// Returns the source of a function without arguments. $1 is its schema, $2 its name.
const FUNCTION: &str = "
SELECT p.prosrc FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND p.proname = $2 AND p.pronargs = 0";

impl Facts {
    /// Reads the catalogs. `outbox` is the configured schema of the outbox.
    pub(super) async fn read(
        connection: &mut PgConnection,
        adoption: &Adoption,
        outbox: Option<&str>,
    ) -> Result<Self, sqlx::Error> {
        let user = sqlx::query_scalar("SELECT current_user::text").fetch_one(&mut *connection).await?;
        let home = sqlx::query_scalar(HOME)
            .bind(outbox)
            .bind(ENQUEUED)
            .bind(&EXECUTED[..])
            .fetch_all(&mut *connection)
            .await?;
        let schema = adoption.schema.as_ref().map(|schema| schema.as_str());
        let table = sqlx::query_scalar(TABLE).bind(adoption.table.as_str()).bind(schema);
        let table = table.fetch_all(&mut *connection).await?;
        let mut facts = Self {
            user,
            home: plain(home).pop(),
            table: plain(table).pop(),
            elsewhere: Vec::new(),
            columns: Vec::new(),
            id_is_unique: false,
            children: Vec::new(),
            triggers: Vec::new(),
            publications: Vec::new(),
            roles: Vec::new(),
            taken_function: None,
            deletion: Deletion::default(),
        };
        facts.elsewhere =
            sqlx::query_scalar(ELSEWHERE).bind(adoption.table.as_str()).fetch_all(&mut *connection).await?;
        let Some(table) = &facts.table else { return Ok(facts) };
        let oid = table.oid;
        facts.columns = plain(sqlx::query_scalar(COLUMNS).bind(oid).fetch_all(&mut *connection).await?);
        let id = sqlx::query_scalar(UNIQUE).bind(oid).bind(adoption.id.column.as_str());
        let is_unique: bool = id.fetch_one(&mut *connection).await?;
        facts.id_is_unique = is_unique && adoption.id.path.is_empty();
        let triggers =
            sqlx::query_scalar(TRIGGERS).bind(oid).bind(super::sql::TRIGGERS.map(String::from).to_vec());
        facts.triggers = plain(triggers.fetch_all(&mut *connection).await?);
        facts.publications =
            plain(sqlx::query_scalar(PUBLICATIONS).bind(oid).fetch_all(&mut *connection).await?);
        if let Some(home) = &facts.home {
            facts.roles = roles::not_appending(&mut *connection, oid, &home.schema).await?;
        }
        facts.children = sqlx::query_scalar(CHILDREN).bind(oid).fetch_all(&mut *connection).await?;
        if adoption.when_sent == WhenSent::Delete {
            facts.deletion = Deletion::read(&mut *connection, oid).await?;
        }
        let function = function_name(adoption, oid);
        let body: Option<String> = sqlx::query_scalar(FUNCTION)
            .bind(table.schema.as_str())
            .bind(&function)
            .fetch_optional(&mut *connection)
            .await?;
        let is_ours = body.as_deref().is_none_or(|body| body.contains(super::sql::SIGN));
        facts.taken_function = (!is_ours).then_some(function);
        Ok(facts)
    }

    pub(super) fn column(&self, name: &str) -> Option<&ColumnFacts> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the trigger that hands rows over, if it exists.
    pub(super) fn trigger(&self) -> Option<&TriggerFacts> {
        self.named(TRIGGER)
    }

    pub(super) fn mark_trigger(&self) -> Option<&TriggerFacts> {
        self.named(MARK_TRIGGER)
    }

    pub(super) fn update_trigger(&self) -> Option<&TriggerFacts> {
        self.named(UPDATE_TRIGGER)
    }

    /// Returns any trigger of an adoption.
    pub(super) fn any_trigger(&self) -> Option<&TriggerFacts> {
        super::sql::TRIGGERS.into_iter().find_map(|name| self.named(name))
    }

    fn named(&self, name: &str) -> Option<&TriggerFacts> {
        self.triggers.iter().find(|trigger| trigger.name == name)
    }
}

impl Deletion {
    async fn read(connection: &mut PgConnection, oid: i64) -> Result<Self, sqlx::Error> {
        let primary_key: Vec<String> =
            sqlx::query_scalar(PRIMARY_KEY).bind(oid).fetch_all(&mut *connection).await?;
        Ok(Self {
            not_deleting: roles::not_deleting(&mut *connection, oid, &primary_key).await?,
            primary_key,
            referring: sqlx::query_scalar(REFERRING).bind(oid).fetch_all(&mut *connection).await?,
            keeping: sqlx::query_scalar(KEEPING).bind(oid).fetch_all(&mut *connection).await?,
            without_policy: roles::without_policy(connection, oid).await?,
        })
    }
}

fn plain<T: DeserializeOwned>(rows: Vec<Json<T>>) -> Vec<T> {
    rows.into_iter().map(|Json(row)| row).collect()
}

/// Returns the function's name, made from the table's name, or from its oid if that would be too
/// long.
pub(super) fn function_name(adoption: &Adoption, oid: i64) -> String {
    let name = format!("outbox_adopt_{}", adoption.table);
    if name.len() <= migrations::IDENTIFIER_BYTES_MAX { name } else { format!("outbox_adopt_{oid}") }
}
