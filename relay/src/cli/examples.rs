//! Three examples for each command, which its help shows.

/// The examples of a command, by its words after `relay`.
type Examples = (&'static str, [&'static str; 3]);

/// Returns the examples of a command.
pub(super) fn of(path: &str) -> Option<&'static [&'static str; 3]> {
    ALL.iter().find(|(of, _)| *of == path).map(|(_, lines)| lines)
}

pub(super) const ALL: &[Examples] = &[
    (
        "run",
        [
            "relay run",
            "relay run --config /etc/relay/relay.toml --log-format json",
            "relay run --once --log-level info,relay=debug",
        ],
    ),
    (
        "migrate up",
        [
            "relay migrate up",
            "relay migrate up --line inbox --schema billing",
            "relay migrate up --database 'sqlite:orders.db?mode=rwc'",
        ],
    ),
    (
        "migrate status",
        [
            "relay migrate status",
            "relay migrate status --pipeline orders --output json",
            "relay migrate status --line inbox --database-file /run/secrets/billing-url",
        ],
    ),
    (
        "migrate sql",
        [
            "relay migrate sql > migration.sql",
            "relay migrate sql --dialect postgres --line outbox",
            "relay migrate sql --pipeline orders --from 2",
        ],
    ),
    (
        "migrate roles",
        [
            "relay migrate roles > roles.sql",
            "relay migrate roles --apply --database-file /run/secrets/owner-url",
            "relay migrate roles --service billing --line inbox --line saga",
        ],
    ),
    (
        "adopt plan",
        [
            "relay adopt plan",
            "relay adopt plan --pipeline orders --database-file /run/secrets/owner-url",
            "relay adopt plan --back > give-back.sql",
        ],
    ),
    (
        "adopt over",
        [
            "relay adopt over --note 'ticket 12'",
            "relay adopt over --pipeline orders --lock-timeout 10s --note 'ticket 12'",
            "relay adopt over --database-file /run/secrets/owner-url --note 'ticket 12' --actor ann",
        ],
    ),
    (
        "adopt back",
        [
            "relay adopt back --note 'back to the old relay'",
            "relay adopt back --pipeline orders --note 'back to the old relay'",
            "relay adopt back --database-file /run/secrets/owner-url --note 'ticket 12' --actor ann",
        ],
    ),
    (
        "adopt status",
        [
            "relay adopt status",
            "relay adopt status --pipeline orders",
            "relay adopt status --output json | jq .waiting",
        ],
    ),
    ("status", ["relay status", "relay status --watch", "relay status --pipeline orders --output json"]),
    (
        "init",
        [
            "relay init",
            "relay init --name orders --database postgres://relay@db/shop --kafka kafka-1:9092,kafka-2:9092",
            "relay init --out /etc/relay/relay.toml --name orders --database-file /run/secrets/url --sqs eu-central-1",
        ],
    ),
    (
        "check",
        ["relay check", "relay check --pipeline orders", "relay check --config staging.toml --output json"],
    ),
    (
        "doctor",
        [
            "relay doctor",
            "relay doctor --pipeline orders --problems",
            "relay doctor --partitions orders.placed=12 --strict",
        ],
    ),
    (
        "verify",
        [
            "relay verify",
            "relay verify --pipeline orders --since 2h --until 5m",
            "relay verify --topic orders.placed --inbox billing=sqlite:billing.db --grace 1m",
        ],
    ),
    (
        "retention",
        [
            "relay retention --dry-run",
            "relay retention --note 'the disk is full'",
            "relay retention --pipeline orders --keep 12h --note 'the disk is full'",
        ],
    ),
    (
        "forget",
        [
            "relay forget old-orders --note 'the service is gone'",
            "relay forget old-orders --pipeline orders --note 'the service is gone'",
            "relay forget old-orders --discard-parked --note 'sent by hand' --actor ann",
        ],
    ),
    (
        "erase",
        [
            "relay erase --key customer-7 --dry-run",
            "relay erase --subject customer-7 --topic orders --note 'request 4711'",
            "relay erase --key customer-7 --discard --yes --note 'request 4711' --actor ann --output json",
        ],
    ),
    (
        "dead list",
        [
            "relay dead list --count",
            "relay dead list --pipeline orders --topic orders.placed --newer-than 2h",
            "relay dead list --state held --state retrying --limit 1000",
        ],
    ),
    (
        "dead show",
        [
            "relay dead show --id 42",
            "relay dead show --pipeline orders --id 42 --id 43",
            "relay dead show --id 019f0000-0000-7000-8000-00000000beef --output json",
        ],
    ),
    (
        "dead requeue",
        [
            "relay dead requeue --id 42 --note 'the queue is there again'",
            "relay dead requeue --topic orders.placed --dry-run",
            "relay dead requeue --source inbox --consumer billing --note 'prices are back' --yes",
        ],
    ),
    (
        "dead discard",
        [
            "relay dead discard --id 42 --note 'sent by hand'",
            "relay dead discard --key order-7 --dry-run",
            "relay dead discard --kind order.test --older-than 7d --note 'of a load test' --yes",
        ],
    ),
    (
        "dead edit",
        [
            "relay dead edit --id 42 --payload-file order.json --note 'without the image'",
            "relay dead edit --pipeline orders --id 42 --header tenant=acme --note 'the tenant was missing'",
            "relay dead edit --id 42 --payload-file order.json --unchanged-since 2026-11-23T15:32:45Z --note typo",
        ],
    ),
    (
        "dead edits",
        [
            "relay dead edits --id 42 --note 'ticket 12'",
            "relay dead edits --pipeline orders --id 0198c1de-0000-7000-8000-00000000beef --note 'ticket 12'",
            "relay dead edits --id 42 --note 'ticket 12' --output json | jq '.[0].before.payload'",
        ],
    ),
    (
        "dead decision",
        [
            "relay dead decision 01a22d34-7c1f-7abc-8184-ba681445d351",
            "relay dead decision 01a22d34-7c1f-7abc-8184-ba681445d351 --pipeline orders",
            "relay dead decision 01a22d34-7c1f-7abc-8184-ba681445d351 --output json | jq '.standing'",
        ],
    ),
    (
        "audit",
        [
            "relay audit",
            "relay audit --actor ann --from 8h",
            "relay audit --topic orders.placed --action discard --export csv > discarded.csv",
        ],
    ),
    (
        "dead audit",
        [
            "relay dead audit",
            "relay dead audit --each --limit 1000",
            "relay dead audit --pipeline orders --output json | jq '.[].note'",
        ],
    ),
    (
        "pause",
        [
            "relay pause --topic orders.placed --note 'the queue is purged'",
            "relay pause --pipeline orders --all --note 'the broker moves'",
            "relay pause --key order-7 --note 'ticket 12' --actor ann",
        ],
    ),
    (
        "resume",
        [
            "relay resume --topic orders.placed --note 'the queue is clean'",
            "relay resume --pipeline orders --all --note 'the broker has moved'",
            "relay resume --key order-7 --note 'ticket 12' --actor ann",
        ],
    ),
    (
        "show",
        [
            "relay show 42",
            "relay show --pipeline orders 42",
            "relay show 019f0000-0000-7000-8000-00000000beef --output json",
        ],
    ),
    (
        "search",
        [
            "relay search --key order-7",
            "relay search --pipeline orders --topic orders.placed --until 2h",
            "relay search --header tenant=acme --output json | jq '.messages[].message_id'",
        ],
    ),
    (
        "consumers",
        [
            "relay consumers",
            "relay consumers --consumer billing",
            "relay consumers --output json | jq -r '.[] | select(.dead > 0) | .consumer'",
        ],
    ),
    ("lag", ["relay lag", "relay lag --pipeline orders", "relay lag --output json | jq '.[0].unread'"]),
    (
        "tail",
        [
            "relay tail",
            "relay tail --pipeline orders --topic orders.placed --limit 10",
            "relay tail --key order-7 --payloads --note 'ticket 12'",
        ],
    ),
    (
        "replay",
        [
            "relay replay --id 42 --note 'lost by the consumer'",
            "relay replay --topic orders.placed --since 2h --dry-run",
            "relay replay --pipeline orders --all --rate 200 --note 'the queue was purged' --yes",
        ],
    ),
    (
        "keys list",
        [
            "relay keys list",
            "relay keys list --pipeline orders --limit 1000",
            "relay keys list --database-file /run/secrets/shop-url --output json",
        ],
    ),
    (
        "keys release",
        [
            "relay keys release --scope acme --operation 'POST /orders' --key 7f3 --note 'nothing was booked'",
            "relay keys release --pipeline orders --scope acme --operation pay --key 7f3 --note 'ticket 12'",
            "relay keys release --database sqlite:shop.db --scope acme --operation pay --key 7f3 --note 'ticket 12'",
        ],
    ),
    (
        "keys discard",
        [
            "relay keys discard --scope acme --operation 'POST /orders' --key 7f3 --note 'it was booked'",
            "relay keys discard --pipeline orders --scope acme --operation pay --key 7f3 --note 'ticket 12'",
            "relay keys discard --database sqlite:shop.db --scope acme --operation pay --key 7f3 --note 'ticket 12'",
        ],
    ),
    (
        "keys audit",
        [
            "relay keys audit",
            "relay keys audit --pipeline orders --limit 1000",
            "relay keys audit --database-file /run/secrets/shop-url --output json",
        ],
    ),
    (
        "sessions list",
        [
            "relay sessions list",
            "relay sessions list --user ann --ended",
            "relay sessions list --pipeline orders --output json",
        ],
    ),
    (
        "sessions revoke",
        [
            "relay sessions revoke --user ann --note 'her laptop was stolen'",
            "relay sessions revoke --session 3l2fW0tYQ0Gm4cZkq6mJbw --note 'left open at the front desk'",
            "relay sessions revoke --all --note 'ticket 12'",
        ],
    ),
    (
        "sagas list",
        [
            "relay sagas list",
            "relay sagas list --type booking --state undoing",
            "relay sagas list --ended --limit 1000 --output json",
        ],
    ),
    (
        "sagas show",
        [
            "relay sagas show --type booking --id trip-7",
            "relay sagas show --pipeline orders --type booking --id trip-7",
            "relay sagas show --database sqlite:shop.db --type booking --id trip-7 --output json",
        ],
    ),
    (
        "sagas stuck",
        [
            "relay sagas stuck",
            "relay sagas stuck --type booking",
            "relay sagas stuck --database-file /run/secrets/shop-url --output json",
        ],
    ),
    (
        "sagas retry",
        [
            "relay sagas retry --type booking --id trip-7 --note 'the hotel answers again'",
            "relay sagas retry --pipeline orders --type booking --id trip-7 --note 'ticket 12'",
            "relay sagas retry --database sqlite:shop.db --type booking --id trip-7 --note 'ticket 12'",
        ],
    ),
    (
        "sagas cancel",
        [
            "relay sagas cancel --type booking --id trip-7 --note 'the customer called'",
            "relay sagas cancel --pipeline orders --type booking --id trip-7 --note 'ticket 12'",
            "relay sagas cancel --database sqlite:shop.db --type booking --id trip-7 --note 'ticket 12'",
        ],
    ),
    (
        "sagas skip",
        [
            "relay sagas skip --type booking --id trip-7 --step hotel --result '\"H-123\"' --note 'booked by phone'",
            "relay sagas skip --type booking --id trip-7 --step flight --note 'refunded by hand'",
            "relay sagas skip --pipeline orders --type booking --id trip-7 --step hotel --result null --note 'ticket 12'",
        ],
    ),
    (
        "sagas audit",
        [
            "relay sagas audit",
            "relay sagas audit --pipeline orders --limit 1000",
            "relay sagas audit --database-file /run/secrets/shop-url --output json",
        ],
    ),
    (
        "config check",
        [
            "relay config check",
            "relay config check --config staging.toml",
            "relay config check --output json | jq .pipeline",
        ],
    ),
    (
        "config show",
        [
            "relay config show",
            "relay config show --toml --config staging.toml",
            "relay config show --output json | jq '.[] | select(.origin != \"default\")'",
        ],
    ),
    (
        "config schema",
        [
            "relay config schema",
            "relay config schema > relay.schema.json",
            "relay config schema | jq '.properties | keys'",
        ],
    ),
    (
        "completions",
        [
            "relay completions bash > /etc/bash_completion.d/relay",
            "relay completions zsh > /usr/share/zsh/site-functions/_relay",
            "relay completions fish > ~/.config/fish/completions/relay.fish",
        ],
    ),
    (
        "man",
        [
            "relay man --out man",
            "relay man --out /usr/local/share/man/man1",
            "relay man --out ~/.local/share/man/man1",
        ],
    ),
];
