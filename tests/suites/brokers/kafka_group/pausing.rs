//! Partitions that are assigned and revoked while reading is paused because the consumer does not
//! receive.

use brokers::kafka::Start;
use tests::{Outcome, Stage};

use super::expel::expel_all;
use super::member::{Group, Member, PREFETCH};

const PARTITIONS: u16 = 6;
/// Messages of each key: many times the prefetch.
const ROUNDS: i64 = 10;

/// Goal: a member whose database is slow pauses, loses its session and gets its partitions back; it
/// reads all of them. Oracle: the ids that it handles; it never prefetches more than its limit.
pub(crate) async fn lost_session(stage: Stage) -> Outcome {
    let group = Group::open(&stage, PARTITIONS).await?;
    let published = group.publish(ROUNDS).await?;
    let mut member = group.join(Start::Earliest).await?;
    for _ in 0..2 {
        let before = paused(&member, usize::from(PARTITIONS)).await?;
        expel_all(&group.name).await?;
        member.until("its partitions come back", |now| now.assignments > before).await?;
    }
    member.handle(&published).await?;
    assert!(member.status().ahead_len_peak <= PREFETCH, "{:?}", member.status());
    member.close().await
}

/// Goal: other members come and go while all are paused. Partitions that are assigned to a paused
/// member wait until it has room, and are then read. Oracle: the ids that are handled; the peak of
/// the prefetch.
pub(crate) async fn members_come_and_go(stage: Stage) -> Outcome {
    let group = Group::open(&stage, PARTITIONS).await?;
    let published = group.publish(ROUNDS).await?;
    let mut staying = group.join(Start::Earliest).await?;
    for _ in 0..2 {
        paused(&staying, usize::from(PARTITIONS)).await?;
        let passing = group.join(Start::Earliest).await?;
        paused(&passing, usize::from(PARTITIONS / 2)).await?;
        paused(&staying, usize::from(PARTITIONS / 2)).await?;
        assert!(passing.status().ahead_len_peak <= PREFETCH, "{:?}", passing.status());
        passing.close().await?;
    }
    paused(&staying, usize::from(PARTITIONS)).await?;
    // Another rebalance is a round trip to the brokers: long enough for messages that should not be
    // fetched to arrive.
    let third = group.join(Start::Earliest).await?;
    paused(&third, usize::from(PARTITIONS / 2)).await?;
    third.close().await?;
    staying.handle(&published).await?;
    assert!(staying.status().ahead_len_peak <= PREFETCH, "{:?}", staying.status());
    staying.close().await
}

/// Waits until a member has this many partitions and does not read them. Returns how often it was
/// assigned partitions.
async fn paused(member: &Member, partitions: usize) -> Result<u64, tests::Failure> {
    let what = format!("{partitions} partitions are paused");
    member.until(&what, |now| now.partitions.len() == partitions && now.paused_for.is_some()).await?;
    Ok(member.status().assignments)
}
