//! The doctor's questions to an inbox, on the real tables.

use inbox::{Inbox, InboxOptions};
use operate::InboxConfig;
use operate::doctor::{CheckState, examine_inbox_order};
use sqlx::Postgres;
use tests::{Database, Failure, Outcome, Role, Stage};

use crate::audit::dead_letter;
use crate::outbox::support::inbox_config;

tests::cases! { "doctor/{on}/{case}":
    postgres { a_sequence_behind_its_dead_letters_is_told }
    night postgres { a_sequence_that_is_a_little_behind_many_dead_letters_is_told }
}

/// Goal: after logical replication, which copies rows and no sequences, an operator learns that new
/// dead letters would come before older ones, also with the rights of an observer. Oracle: the
/// finding before, after the sequence was set back, and after the statement of its remedy.
async fn a_sequence_behind_its_dead_letters_is_told(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await?;
    let observer = inbox_config(&Role::Observer.url(&db.url)?, "billing", &[], &[]);
    let owner = inbox_config(&db.url, "billing", &[], &[]);
    let state = async |config: &InboxConfig| {
        let findings = examine_inbox_order(config).await;
        match &findings[..] {
            [finding] if finding.check == "inbox-order" => Ok((finding.state, finding.remedy.clone())),
            _ => Err(Failure::from(format!("{findings:?}"))),
        }
    };
    assert_eq!(state(&owner).await?.0, CheckState::Pass, "no dead letter yet");
    for error in ["first", "second"] {
        dead_letter(&inbox, error).await?;
    }
    assert_eq!(state(&observer).await?.0, CheckState::Pass);
    db.execute("ALTER TABLE inbox_dead_letter ALTER COLUMN seq RESTART").await?;
    assert_eq!(state(&owner).await?.0, CheckState::Fail);
    let (told, remedy) = state(&observer).await?;
    assert_eq!(told, CheckState::Fail);
    let remedy = remedy.ok_or("no remedy")?;
    let begin = remedy.find("SELECT").ok_or("no statement")?;
    let end = remedy.find(" as the owner").ok_or("no end")?;
    db.execute(&remedy[begin..end]).await?;
    assert_eq!(state(&observer).await?.0, CheckState::Pass, "{remedy}");
    db.execute(&format!("REVOKE ALL ON inbox_dead_letter_seq_seq FROM {}", Role::Observer.user())).await?;
    assert_eq!(state(&observer).await?.0, CheckState::Unknown);
    Ok(())
}

/// Goal: however many dead letters are open, one that is numbered above the sequence is found.
/// Oracle: the finding about a sequence that is one behind the last of more dead letters than are
/// compared.
async fn a_sequence_that_is_a_little_behind_many_dead_letters_is_told(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await?;
    let config = inbox_config(&db.url, "billing", &[], &[]);
    dead_letter(&inbox, "first").await?;
    // Copies with ids of earlier days. The last one has the latest id, as its time has.
    let copies = "DO $$ DECLARE columns text; BEGIN
        SELECT string_agg(quote_ident(column_name), ', ') INTO columns FROM information_schema.columns
            WHERE table_name = 'inbox_dead_letter' AND column_name NOT IN ('id', 'subject', 'seq');
        EXECUTE format('INSERT INTO inbox_dead_letter (id, subject, %1$s)
            SELECT made.id::uuid, made.id::uuid, %1$s
            FROM (SELECT * FROM inbox_dead_letter LIMIT 1) AS letter, (
                SELECT CASE WHEN n = 200000 THEN ''ffffffff-ffff-7000-8000-'' ELSE ''00000000-0000-7000-8000-'' END
                    || lpad(to_hex(n), 12, ''0'') AS id
                FROM generate_series(1, 200000) AS n) AS made', columns);
        END $$";
    db.execute(copies).await?;
    let state = async || match &examine_inbox_order(&config).await[..] {
        [finding] if finding.check == "inbox-order" => Ok(finding.state),
        findings => Err(Failure::from(format!("{findings:?}"))),
    };
    assert_eq!(state().await?, CheckState::Pass);
    db.execute("SELECT setval('inbox_dead_letter_seq_seq', 200000)").await?;
    assert_eq!(state().await?, CheckState::Fail, "200,001 is the number of the last one");
    Ok(())
}
