-- Whether an outbox has messages although no relay has ever read them.
SELECT EXISTS (SELECT FROM {schema}outbox_message) AND NOT EXISTS (SELECT FROM {schema}outbox_relay) AS unread
