//! Servers that speak PostgreSQL's protocol but lack a guarantee that the relay's proof relies on.
//! Pure decisions.

use outbox::connect::SHARED_SESSIONS;

/// The server's answers about itself and about the outbox's tables.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerKind {
    /// `version()`.
    pub(super) version: String,
    /// Whether the catalog of Aurora DSQL exists.
    pub(super) is_dsql: bool,
    /// Whether a new connection finds statements that another client has prepared.
    pub(super) hands_on_statements: bool,
    /// A table of the outbox that Citus distributes.
    pub(super) distributed: Option<String>,
    /// A table of the outbox that a subscription fills.
    pub(super) subscribed: Option<String>,
}

impl ServerKind {
    /// Returns whether the relay does not support the server's product. Every other refusal can be
    /// repaired while a relay waits.
    pub(super) fn is_wrong_product(&self) -> bool {
        self.is_dsql || self.product().is_some()
    }

    /// Returns the product, and why the relay does not support it.
    fn product(&self) -> Option<(&'static str, &'static str)> {
        PRODUCTS
            .iter()
            .find_map(|(sign, product, why)| self.version.contains(sign).then_some((*product, *why)))
    }

    /// Returns why the relay does not work here, with the remedy.
    pub(super) fn refusal(&self) -> Option<String> {
        if let Some((product, why)) = self.product() {
            return Some(format!(
                "is {product}, which is not supported: {why}; put the outbox into PostgreSQL"
            ));
        }
        if self.is_dsql {
            return Some(String::from(
                "is Aurora DSQL, which is not supported: it has no sequences and no snapshots of transaction ids; put \
                 the outbox into PostgreSQL",
            ));
        }
        if self.hands_on_statements {
            return Some(format!("runs the prepared statements of another client: {SHARED_SESSIONS}"));
        }
        if let Some(table) = &self.distributed {
            return Some(format!(
                "distributes the table {table} with Citus: its transaction ids are taken on the coordinator and its \
                 rows become visible on the workers; run SELECT undistribute_table('{table}')"
            ));
        }
        self.subscribed.as_ref().map(|table| {
            format!(
                "fills the table {table} by a subscription: its rows have transaction ids of the publisher, \
                 and sequences are not replicated; run the relay on the publisher, or end the subscription \
                 (ALTER SUBSCRIPTION … REFRESH PUBLICATION without the outbox's tables, or DROP \
                 SUBSCRIPTION) and see docs/operations/histories.md"
            )
        })
    }
}

/// Unsupported products: a part of their `version()`, their name, and the reason.
const PRODUCTS: [(&str, &str, &str); 4] = [
    ("CockroachDB", "CockroachDB", "ids of a sequence and transaction ids do not ascend with time there"),
    ("-YB-", "YugabyteDB", "its nodes cache ids of a sequence and have their own transaction ids"),
    ("Greenplum", "Greenplum", "its segments have their own transaction ids"),
    ("Redshift", "Amazon Redshift", "it has no snapshots of transaction ids"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of real servers to `SELECT version()`.
    #[test]
    fn each_kind_of_server_is_known_by_its_own_words() {
        let table = [
            (
                "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)",
                Some("CockroachDB"),
            ),
            (
                "PostgreSQL 11.2-YB-2.18.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 15.0.3, 64-bit",
                Some("YugabyteDB"),
            ),
            (
                "PostgreSQL 15.2-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6, 64-bit",
                Some("YugabyteDB"),
            ),
            (
                "PostgreSQL 12.12 (Greenplum Database 7.0.0 build commit:0a7a3566873325aca1789ae6f818c80f17a9402d) on \
                 x86_64-pc-linux-gnu, compiled by gcc (GCC) 8.5.0, 64-bit",
                Some("Greenplum"),
            ),
            (
                "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 (Red Hat 3.4.2-6.fc3), \
                 Redshift 1.0.54239",
                Some("Amazon Redshift"),
            ),
            (
                "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) \
                 12.2.0, 64-bit",
                None,
            ),
            (
                "PostgreSQL 16.1 on aarch64-unknown-linux-gnu, compiled by aarch64-unknown-linux-gnu-gcc (GCC) 9.5.0, 64-bit",
                None,
            ),
            (
                "EnterpriseDB PostgreSQL 15.4.0 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 11.3.1, 64-bit",
                None,
            ),
        ];
        for (version, product) in table {
            let kind = ServerKind { version: version.to_owned(), ..ServerKind::default() };
            let refusal = kind.refusal();
            assert_eq!(refusal.is_some(), product.is_some(), "{version}");
            assert_eq!(kind.is_wrong_product(), product.is_some(), "{version}");
            assert!(refusal.unwrap_or_default().contains(product.unwrap_or_default()), "{version}");
        }
    }

    #[test]
    fn tables_that_another_server_fills_are_named_with_what_to_do() {
        let plain = ServerKind { version: String::from("PostgreSQL 15.4"), ..ServerKind::default() };
        assert_eq!(plain.refusal(), None);
        let table = || Some(String::from("outbox_message"));
        let distributed = ServerKind { distributed: table(), ..plain.clone() }.refusal().unwrap();
        assert!(distributed.contains("undistribute_table('outbox_message')"), "{distributed}");
        let subscribed = ServerKind { subscribed: table(), ..plain.clone() }.refusal().unwrap();
        assert!(subscribed.contains("DROP SUBSCRIPTION"), "{subscribed}");
        let shared = ServerKind { hands_on_statements: true, ..plain.clone() }.refusal().unwrap();
        assert!(shared.contains("session mode") && shared.contains("max_prepared_statements"), "{shared}");
        let dsql = ServerKind { is_dsql: true, ..plain.clone() }.refusal().unwrap();
        assert!(dsql.contains("Aurora DSQL"), "{dsql}");
        // An operator can repair these while the relay waits.
        let repaired = [
            ServerKind { distributed: table(), ..plain.clone() },
            ServerKind { subscribed: table(), ..plain.clone() },
            ServerKind { hands_on_statements: true, ..plain.clone() },
        ];
        assert!(repaired.iter().all(|kind| !kind.is_wrong_product()));
        assert!(ServerKind { is_dsql: true, ..plain }.is_wrong_product());
    }
}
