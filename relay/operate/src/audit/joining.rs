//! Combines the lines about one session, which the audit of each pipeline has.

use super::line::AuditLine;

/// Maximum time between the lines of one action about a session: each database has its own clock.
const APART_MAX: time::Duration = time::Duration::MINUTE;

/// Maximum number of lines among which the same action is searched.
const NEAR_MAX: usize = 200;

/// Combines the lines of several audits, latest first.
pub(super) fn joined(lines: &mut Vec<AuditLine>) {
    let mut kept: Vec<AuditLine> = Vec::with_capacity(lines.len());
    for line in lines.drain(..) {
        let near = kept.iter_mut().rev().take(NEAR_MAX).take_while(|known| known.at - line.at <= APART_MAX);
        match near.into_iter().find(|known| is_same(known, &line)) {
            Some(known) => known.also_of.extend(std::iter::once(line.owner).chain(line.also_of)),
            None => kept.push(line),
        }
    }
    *lines = kept;
}

/// Returns whether two lines are of one action about a session. The same action again in a pipeline
/// that has it is another one.
fn is_same(known: &AuditLine, line: &AuditLine) -> bool {
    known.is_of_session()
        && (&known.action, &known.actor) == (&line.action, &line.actor)
        && (&known.selection, &known.note) == (&line.selection, &line.note)
        && line.owners().all(|owner| known.owners().all(|other| other != owner))
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::super::line::tests::sample;
    use super::*;

    /// Goal: logins do not hide the decisions of several pipelines. Oracle: the lines of one login
    /// and one revocation in three pipelines, of a revocation that was repeated, and of decisions.
    #[test]
    fn a_login_is_one_line_however_many_pipelines_have_it() {
        let of = |action: &str, owner: &str, seconds: i64| AuditLine {
            at: OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds),
            action: action.to_owned(),
            owner: owner.to_owned(),
            ..sample("ann", 1, Some("session AAAA as operator"))
        };
        let mut lines = vec![
            of("revoke", "shipping", 95),
            of("requeue", "orders", 91),
            of("revoke", "orders", 91),
            of("requeue", "shipping", 91),
            of("revoke", "orders", 90),
            of("login", "billing", 11),
            of("login", "shipping", 10),
        ];
        joined(&mut lines);
        // Another database has answered.
        lines.push(of("login", "orders", 10));
        joined(&mut lines);
        let told: Vec<_> = lines.iter().map(|line| (line.action.as_str(), line.owners().count())).collect();
        assert_eq!(told, [("revoke", 2), ("requeue", 1), ("requeue", 1), ("revoke", 1), ("login", 3)]);
        assert_eq!(lines[0].owned().as_str(), "2 pipelines");
        assert_eq!(lines[1].owned().as_str(), "orders");
        let mut later = vec![of("login", "orders", 100), of("login", "shipping", 39)];
        joined(&mut later);
        assert_eq!(later.len(), 2, "these are two logins");
    }
}
