//! Names that somebody with bad intentions, or bad luck, writes into a configuration.

/// No name of a schema, relay, role, topic or queue.
pub const NAMES: [&str; 15] = [
    "",
    " ",
    "a b",
    "a\"b",
    "a'b",
    "x\"; DROP TABLE outbox_message; --",
    "x'; DROP TABLE outbox_message; --",
    "a;b",
    "a\0b",
    "a\nb",
    "a\\b",
    "größe",
    "ａdmin",
    "\u{202e}nimda",
    // 64 bytes: PostgreSQL would cut it to the name of somebody else.
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];
