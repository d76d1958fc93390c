//! The roles that insert rows into the old table, and the rights that they lack.

use operate::OperateError;
use outbox::ENQUEUED;
use sqlx::PgConnection;

use super::check::quoted;
use super::facts::Facts;
use crate::adoption::Adoption;

/// The functions that a producer must be able to execute: the trigger calls the first one with the
/// producer's rights, and that one calls the others. `PUBLIC` may execute them, unless default
/// privileges of the database revoke it.
pub(super) const EXECUTED: [&str; 3] = ["outbox_enqueue", "outbox_check_text", "outbox_new_message_id"];

/// Selects the roles that may insert into the table $1 and that meet a condition.
///
/// The triggers run with the rights of the current role. This is a login, a role that a login
/// assumes with `SET ROLE`, or the owner of a `SECURITY DEFINER` function. Other roles cannot
/// insert, and a superuser lacks no right.
macro_rules! inserting {
    ($condition:literal) => {
        concat!(
            "
SELECT quote_ident(r.rolname)
FROM pg_roles AS r JOIN pg_class AS c ON c.oid = $1::bigint::oid
WHERE NOT r.rolsuper AND r.rolname !~ '^pg_' AND has_any_column_privilege(r.oid, c.oid, 'INSERT')
    AND has_schema_privilege(r.oid, c.relnamespace, 'USAGE')
    AND (EXISTS (SELECT FROM pg_roles AS l WHERE l.rolcanlogin AND NOT l.rolsuper
            AND has_database_privilege(l.oid, current_database(), 'CONNECT') AND pg_has_role(l.oid, r.oid, 'MEMBER'))
        OR EXISTS (SELECT FROM pg_proc AS p WHERE p.proowner = r.oid AND p.prosecdef))
    AND ",
            $condition,
            "
ORDER BY r.rolname"
        )
    };
}

/// $2 is the schema of the outbox, $3 the columns that a producer inserts, $4 the functions that it
/// executes.
const NOT_APPENDING: &str = inserting!(
    "NOT EXISTS (SELECT FROM pg_namespace AS h
        JOIN pg_class AS m ON m.relname = 'outbox_message' AND m.relnamespace = h.oid
        WHERE h.nspname = $2 AND has_schema_privilege(r.oid, h.oid, 'USAGE')
            AND (SELECT bool_and(has_column_privilege(r.oid, m.oid, w.name, 'INSERT'))
                FROM unnest(string_to_array($3, ', ')) AS w(name))
            AND NOT EXISTS (SELECT FROM pg_proc AS f WHERE f.pronamespace = h.oid AND f.proname = ANY ($4::text[])
                AND NOT has_function_privilege(r.oid, f.oid, 'EXECUTE')))"
);

/// $2 is the columns of the primary key.
const NOT_DELETING: &str = inserting!(
    "NOT (has_table_privilege(r.oid, c.oid, 'DELETE')
        AND coalesce((SELECT bool_and(has_column_privilege(r.oid, c.oid, k.name, 'SELECT'))
            FROM unnest($2::text[]) AS k(name)), true))"
);

/// Whether the condition of a policy holds for a row shows only when the row is deleted.
const WITHOUT_POLICY: &str = inserting!(
    "c.relrowsecurity AND NOT r.rolbypassrls
    AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
    AND EXISTS (SELECT FROM unnest(ARRAY['r', 'd']) AS w(command) WHERE NOT EXISTS (SELECT FROM pg_policy AS p
        WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd::text IN (w.command, '*') AND EXISTS (
            SELECT FROM unnest(p.polroles) AS g(role)
            WHERE g.role = 0 OR pg_has_role(r.oid, g.role, 'USAGE'))))"
);

/// Returns roles that may insert into a table but not append messages.
pub(super) async fn not_appending(
    connection: &mut PgConnection,
    table: i64,
    schema: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let query = sqlx::query_scalar(NOT_APPENDING).bind(table).bind(schema).bind(ENQUEUED).bind(&EXECUTED[..]);
    query.fetch_all(connection).await
}

/// Returns roles that may insert into a table but not delete its rows by the primary key.
pub(super) async fn not_deleting(
    connection: &mut PgConnection,
    table: i64,
    primary_key: &[String],
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(NOT_DELETING).bind(table).bind(primary_key).fetch_all(connection).await
}

/// Returns roles that may insert into a table but delete no row, because of row level security.
pub(super) async fn without_policy(
    connection: &mut PgConnection,
    table: i64,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(WITHOUT_POLICY).bind(table).fetch_all(connection).await
}

/// Returns the statement that makes a role a producer.
pub(super) fn grant(has_producer_role: bool, schema: &str, role: &str) -> String {
    if has_producer_role {
        return format!("GRANT outbox_producer TO {role}");
    }
    let functions = EXECUTED.map(|function| format!("{schema}.{function}")).join(", ");
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role}; \
         GRANT INSERT ({ENQUEUED}) ON {schema}.outbox_message TO {role}; \
         GRANT EXECUTE ON FUNCTION {functions} TO {role}"
    )
}

/// A role whose inserts would fail, and the statement that permits them.
pub(super) struct Lacking {
    pub(super) role: String,
    pub(super) remedy: String,
    /// The missing right.
    right: &'static str,
}

/// Returns the roles whose inserts would fail: they may not append messages, or cannot delete the
/// row.
pub(super) fn lacking(adoption: &Adoption, facts: &Facts) -> Vec<Lacking> {
    let home = facts.home.as_ref();
    let schema = home.map_or("public", |home| home.schema.as_str());
    let has_producer_role = home.is_some_and(|home| home.has_producer_role);
    let appending = facts.roles.iter().map(|role| {
        let remedy = grant(has_producer_role, schema, role);
        Lacking { role: role.clone(), remedy, right: "append messages" }
    });
    let old = facts.table.as_ref().map(|table| format!("{}.", quoted(&table.schema))).unwrap_or_default();
    let deleting = facts.deletion.not_deleting.iter().map(|role| {
        let remedy = format!("GRANT SELECT, DELETE ON {old}{} TO {role}", quoted(adoption.table.as_str()));
        Lacking { role: role.clone(), remedy, right: "delete its rows" }
    });
    let hidden = facts.deletion.without_policy.iter().map(|role| {
        let table = format!("{old}{}", quoted(adoption.table.as_str()));
        let remedy = format!(
            "CREATE POLICY … ON {table} FOR SELECT TO {role} USING (…), and a second one FOR DELETE; both must \
             hold for every row that {role} inserts"
        );
        Lacking { role: role.clone(), remedy, right: "delete its rows under row level security" }
    });
    appending.chain(deleting).chain(hidden).collect()
}

/// Returns an error if producers would fail once the trigger exists.
pub(super) fn producers(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    let lacking = lacking(adoption, facts);
    let Some(Lacking { right, .. }) = lacking.first() else { return Ok(()) };
    let alike: Vec<&Lacking> = lacking.iter().filter(|it| it.right == *right).collect();
    let roles: Vec<&str> = alike.iter().map(|it| it.role.as_str()).collect();
    let text = format!(
        "roles that may insert into {} may not {right}: {}; their inserts would fail",
        adoption.table_name(),
        roles.join(", ")
    );
    let grants: Vec<&str> = alike.iter().map(|it| it.remedy.as_str()).collect();
    let help = format!("{}; or revoke their right to insert into the old table", grants.join("; "));
    Err(OperateError::refused(text, help))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use migrations::Line;
    use migrations::rights::Rights;

    use super::*;

    /// The trigger writes with the rights of a producer, so it needs exactly these rights.
    #[test]
    fn what_is_asked_for_is_granted_to_producers() {
        let granted = Rights::of(Line::Outbox).unwrap().granted;
        let of_producers = || granted.iter().filter(|right| right.role == "producer");
        let columns: BTreeSet<&str> = of_producers()
            .filter(|right| right.object == "outbox_message" && right.privilege == "INSERT")
            .filter_map(|right| right.column.as_deref())
            .collect();
        assert_eq!(ENQUEUED.split(", ").collect::<BTreeSet<_>>(), columns);
        for function in EXECUTED {
            let is_granted = of_producers().any(|right| right.object.starts_with(&format!("{function}(")));
            assert!(is_granted, "{function}");
        }
    }
}
