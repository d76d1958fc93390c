//! SQL about the decisions of operators, in a form that every database accepts. `a` is a row of the
//! audit, and the decisions are grouped by their message.

/// True in a group of decisions about one message where the last one is to discard it. `relay
/// forget` withdraws such a decision, and the next relay of the name publishes the message.
macro_rules! ends_with_a_discard {
    () => {
        "max(a.seq) FILTER (WHERE a.action = 'discard')
            > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue'), 0)"
    };
}

/// True in a group of decisions about one message where an operator has edited it. `relay forget`
/// removes the edited copy, and the next relay of the name publishes the message as it was
/// enqueued. No person decides under its name: see [`WITHDRAWN_BY`](crate::admin::WITHDRAWN_BY).
macro_rules! has_an_edit {
    () => {
        "max(a.seq) FILTER (WHERE a.action = 'edit')
            > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue' AND a.actor = 'relay forget'), 0)"
    };
}

/// True in a group of decisions about one message where an operator has ever edited it: the broker
/// and inboxes may have its edited content, even after `relay forget` has withdrawn the edit.
macro_rules! was_edited {
    () => {
        "count(*) FILTER (WHERE a.action = 'edit') > 0"
    };
}

pub(crate) use {ends_with_a_discard, has_an_edit, was_edited};
