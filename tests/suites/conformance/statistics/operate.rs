//! Queries and decisions of operators: the relay's commands, its web page, and `relay verify`.

use std::num::NonZeroU32;
use std::time::Duration;

use idempotency::{IdempotencyKeys, KeyId, KeyOptions};
use inbox::reconcile::{self, Whose};
use inbox::{
    DeadLetterId, DeadLetterQuery, FoundLetter, Inbox, LetterFilter, ManyDecided, RedriveOptions, SeenLetter,
    Signature,
};
use outbox::Outbox;
use saga::{Choice, Run, SagaId, SagaQuery, Sagas, State};
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::{Database, Outcome};
use uuid::Uuid;

use super::CONSUMER;

/// Number of repetitions of each query: from the sixth execution on, PostgreSQL may keep a generic
/// plan.
pub(super) const TIMES: usize = 7;

pub(super) fn signature() -> Signature {
    Signature { actor: String::from("ann"), note: String::from("a test"), selection: None }
}

pub(super) fn many() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(99)
}

pub(super) async fn inbox(database: &Database<Postgres>, inbox: &Inbox<Postgres>) -> Outcome {
    let mut queries = Vec::new();
    for consumer in [None, Some(CONSUMER.parse()?)] {
        for resolved_too in [false, true] {
            let query = DeadLetterQuery { consumer: consumer.clone(), resolved_too, ..Default::default() };
            queries.push(DeadLetterQuery { with_payloads: false, ..query.clone() });
            queries.push(query);
        }
    }
    let filters = [
        LetterFilter::default(),
        LetterFilter {
            consumer: Some(CONSUMER.parse()?),
            reason: Some("poison".into()),
            ..Default::default()
        },
    ];
    let some = "SELECT message_id::text FROM inbox_attempt /* the test */ LIMIT 10";
    let mut ids =
        database.texts(some).await?.iter().map(|id| id.parse()).collect::<Result<Vec<Uuid>, _>>()?;
    ids.push(Uuid::now_v7());
    let whose = Whose { consumer: CONSUMER.parse()?, tenant: None };
    let connection = PgConnection::connect(&database.url).await?;
    let mut memory = reconcile::postgres(connection, None, whose, Duration::ZERO).await?;
    for _ in 0..TIMES {
        for query in &mut queries {
            query.after = inbox.dead_letters(query).await?.last().map(|letter| letter.id);
        }
        for id in &ids {
            drop(inbox.known(*id).await?);
            drop(inbox.dead_letters_of(*id, None).await?);
            drop(inbox.dead_letter_by_id(DeadLetterId(*id)).await?);
            drop(inbox.decisions_of(&[DeadLetterId(*id)], many()).await?);
        }
        drop(inbox.activity(Duration::from_secs(3_600)).await?);
        drop(inbox.decisions(many()).await?);
        drop(inbox.incomplete(many()).await?);
        for filter in &filters {
            drop(inbox.open_letters(filter, None, 50).await?);
            let chosen = inbox.choose_letters(filter, None).await?.letters;
            drop(inbox.survey(filter).await?);
            if let Some(consumer) = &filter.consumer {
                drop(inbox.letter_errors(consumer).await?);
            }
            inbox.now().await?;
            let seen = |letter: &FoundLetter| SeenLetter {
                id: letter.id,
                reason: letter.reason,
                deliveries: letter.deliveries,
            };
            let seen: Vec<SeenLetter> = chosen.iter().map(seen).take(50).collect();
            let decided = ManyDecided { signature: signature(), id: Uuid::now_v7() };
            drop(inbox.request_redrives(&seen, RedriveOptions::default(), &decided).await?);
            let again = ManyDecided { signature: signature(), id: Uuid::now_v7() };
            let late = RedriveOptions::default().accept_late(true);
            drop(inbox.request_redrives(&seen, late, &again).await?);
            drop(inbox.discard_all(&seen[..seen.len().min(5)], &decided).await?);
            drop(inbox.decision(decided.id, filter.consumer.as_ref()).await?);
        }
        drop(memory.page(Uuid::nil(), "", Uuid::max(), 100).await?);
        drop(memory.find(&ids).await?);
        drop(memory.unfinished(&ids).await?);
        drop(inbox.settled(&ids, None).await?);
        drop(inbox.settled(&ids, Some(&CONSUMER.parse()?)).await?);
        assert!(memory.retained_from().await?.is_some());
    }
    Ok(())
}

pub(super) async fn keys(database: &Database<Postgres>) -> Outcome {
    let keys = IdempotencyKeys::open(database.admin.clone(), KeyOptions::default()).await?;
    for _ in 0..TIMES {
        drop(keys.stuck(many()).await?);
        drop(keys.decisions(many()).await?);
        let id = KeyId::of_texts("t", "charge", "old-7")?;
        let is_decided = keys.decide(&id, None, idempotency::Action::Release, &signature()).await?;
        assert!(!is_decided, "the key was not stuck");
    }
    Ok(())
}

pub(super) async fn sagas(database: &Database<Postgres>) -> Outcome {
    let saga = async |_: &mut Run<Postgres>, cents: i64| Ok(cents);
    let sagas =
        Sagas::builder(database.admin.clone(), Outbox::new()).saga("checkout", 1, saga).open().await?;
    let mut queries = vec![SagaQuery::open(many()); 5];
    queries[1].is_stuck = true;
    queries[2].with_ended = true;
    queries[3].saga_type = Some(String::from("checkout"));
    queries[4].state = Some(State::Finished);
    queries[4].with_ended = true;
    for number in 0..TIMES {
        for query in &queries {
            drop(sagas.list(query).await?);
        }
        let id = SagaId::new("checkout", format!("old-{}", 2 + 2 * number))?;
        drop(sagas.look(&id).await?);
        sagas.decide(&id, Choice::Cancel, None, &signature()).await?;
        drop(sagas.decide(&id, Choice::Retry, None, &signature()).await.err());
        drop(sagas.decisions(many()).await?);
        // More than the test takes: none is overdue.
        assert_eq!(sagas.overdue(Duration::from_secs(86_400)).await?, []);
    }
    Ok(())
}
