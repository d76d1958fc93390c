//! Names of the statements that every database has. The methods of
//! [`Tables`](crate::tables::Tables) run and describe them; each database has its own texts.

use migrations::{Backend, Identifier};

/// The texts of a database's statements.
#[doc(hidden)]
pub trait Texts: Backend {
    /// The rendered SQL.
    type Statements: Send + Sync + 'static;

    /// Renders the SQL.
    fn statements(schema: Option<&Identifier>) -> Self::Statements;

    /// Returns the statements that every database has.
    fn shared_statements(statements: &Self::Statements) -> Shared;
}

migrations::shared_statements! { $
    activity_applied activity_attempts activity_letters add_counts attempt canonical choose_letters chunk_numbers clear_dead clock
    closed_since complete count_attempt count_chunks counts dead_letter dead_letters dead_letters_of decisions_of erase_letters erase_outcomes
    erase_results fail_held
    find fingerprint_of_dead_letter finish_request has_chunk held_firsts hold_set holder_before incomplete insert insert_dead
    is_requested keep_chunk known_attempts known_rows letter_decision letter_groups letter_outcomes letter_total
    letters_of_key letters_of_topic lock_dead_letter lock_held lock_letters lock_others lock_set note_decision note_requests open_dead_letters
    open_letters postpone purge_attempts purge_dead_letters purge_minutes read_chunks remembered remembered_page
    remove_chunks remove_set replace_requests requests resolve results_of retained_from settled store_dead_letter take_over unfinished
}
