//! Names of the statements that every database has. The methods of
//! [`Tables`](crate::tables::Tables) run and describe them; each database has its own texts.

macro_rules! shared {
    ($dollar:tt $($name:ident)*) => {
        /// The SQL of sagas, rendered for a database and a schema.
        #[derive(Debug)]
        pub struct Shared {
            $(pub(crate) $name: migrations::Statement,)*
        }

        /// Takes the statements that all databases have from those of one.
        macro_rules! shared_of {
            ($dollar statements:expr) => {
                $crate::statements::Shared { $($name: $dollar statements.$name.clone(),)* }
            };
        }
        pub(crate) use shared_of;
    };
}

shared! { $
    announce_reply begin_undo cancel change_step change_step_with_effect claim decisions end_undo far_ahead find finish
    got_on has_reply insert insert_early_reply insert_reply insert_step insert_step_with_effect list_all list_ended list_open
    list_stuck lock_saga look look_steps mailbox note_decision overdue postpone retry skip_new_step skip_step skip_undo
    state step_state steps stick wait wake_stranded
}
