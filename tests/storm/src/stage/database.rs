//! The databases of producers, consumers, sagas and their bank.

/// The URLs of databases on one PostgreSQL server, or of SQLite files, without a proxy in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Database {
    /// Business rows and outbox.
    pub producers: String,
    /// Inbox and effects.
    pub consumers: String,
    /// Sagas, their outbox and inbox, stock and shipping.
    pub sagas: String,
    /// The bank that sagas call.
    pub bank: String,
    /// Number of accounts, the rows for which producers contend. They are in table `account`,
    /// column `name`, from `account-0` up to this number minus one. A producer locks them in
    /// ascending order of their names.
    pub accounts: u32,
    /// Whether no table may have statistics.
    pub never_analysed: bool,
}

impl Database {
    /// Returns the name of an account.
    #[must_use]
    pub fn account(number: u32) -> String {
        format!("account-{number}")
    }
}
