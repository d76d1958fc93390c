//! Names that an attacker, or bad luck, puts into a configuration.

/// Invalid names of schemas, relays, roles, topics and queues.
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
    // This name has 64 bytes, and PostgreSQL would shorten it to another name.
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];
