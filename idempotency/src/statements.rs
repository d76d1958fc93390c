//! Names of the statements that every database has. The methods of
//! [`KeyTables`](crate::store::KeyTables) run and describe them; each database has its own texts.

migrations::shared_statements! { $
    find finish forget insert look replace report stuck
}
