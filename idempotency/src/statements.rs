//! Names of the statements that every database has. The methods of
//! [`KeyTables`](crate::store::KeyTables) run and describe them; each database has its own texts.

migrations::shared_statements! { $
    erase find finish forget insert look named replace report stuck
}
