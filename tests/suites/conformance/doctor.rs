//! The doctor's questions to an inbox, on the real tables.

use std::collections::BTreeSet;

use brokers::Secret;
use inbox::{ConsumerName, Inbox, InboxOptions};
use operate::InboxConfig;
use operate::doctor::{CheckState, examine_inbox_order};
use sqlx::Postgres;
use tests::{Database, Failure, Outcome, Role, Stage};

use crate::audit::dead_letter;

tests::cases! { "doctor/{on}/{case}":
    postgres { a_sequence_behind_its_dead_letters_is_told }
}

fn config(url: &str) -> Result<InboxConfig, Failure> {
    Ok(InboxConfig {
        consumer: ConsumerName::new("billing")?,
        scope: None,
        url: Secret::Text(url.to_owned().into()),
        lent: None,
        schema: None,
        allow_plaintext: true,
        topics: BTreeSet::new(),
        pipelines: BTreeSet::new(),
        effects: None,
        effects_kinds: BTreeSet::new(),
        group: None,
    })
}

/// Goal: after logical replication, which copies rows and no sequences, an operator learns that new
/// dead letters would come before older ones, also with the rights of an observer. Oracle: the
/// finding before, after the sequence was set back, and after the statement of its remedy.
async fn a_sequence_behind_its_dead_letters_is_told(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await?;
    let observer = config(&Role::Observer.url(&db.url)?)?;
    let owner = config(&db.url)?;
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
