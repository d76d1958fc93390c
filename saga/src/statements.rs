//! Names of the statements that every database has. The methods of
//! [`Tables`](crate::tables::Tables) run and describe them; each database has its own texts.

migrations::shared_statements! { $
    announce_reply begin_undo cancel change_step change_step_with_effect claim end_undo erase_replies erase_saga
    erase_steps far_ahead find finish
    got_on has_reply insert insert_early_reply insert_reply insert_step insert_step_with_effect list_all list_ended list_open
    list_stuck lock_saga look look_steps mailbox note_decision of_id overdue postpone retry skip_new_step skip_step skip_undo
    state step_state steps stick wait wake_stranded
}
