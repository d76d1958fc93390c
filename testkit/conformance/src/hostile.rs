//! Names that an attacker, or bad luck, writes into a configuration.

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
    // 64 bytes: PostgreSQL would cut it to another name.
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];
