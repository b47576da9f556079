//! Health checks for `tenure doctor`: members, versions, alarms, rights, and the shortest lease.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Context;
use super::connection::{Connection, Method};
use super::layout::messages::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse,
};
use super::layout::{self, Space, TXN};
use super::session::grant;
use crate::backend::Owner;
use crate::error::{Error, Result};
use crate::finding::{Finding, Severity};

const STATUS: Method = Method("/etcdserverpb.Maintenance/Status");
const ALARM: Method = Method("/etcdserverpb.Maintenance/Alarm");
const MEMBERS: Method = Method("/etcdserverpb.Cluster/MemberList");
/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// An endpoint of the URL, and what its member reports.
type MemberStatus = (String, Result<StatusResponse>);

pub(super) async fn doctor(context: &Context) -> Result<Vec<Finding>> {
    let connection = &context.connection;
    let reports: Vec<MemberStatus> =
        connection.call_each(STATUS, StatusRequest {}, REQUEST_LIMIT).await;
    let mut findings: Vec<_> = reports.iter().filter_map(unhealthy).collect();
    findings.push(quorum(connection, &reports).await);
    findings.push(leader(&reports));
    findings.extend(versions(&reports));
    findings.push(alarms(connection).await);
    findings.push(rights(connection, &context.space).await);
    let shortest = context.min_ttl.as_secs();
    findings.push(Finding::good(
        "lease minimum",
        format!("{shortest} s; leases are whole seconds, rounded up"),
    ));
    findings.push(Finding::good(
        "clock",
        "leases are counted by the leader's own stopwatch; no wall clock matters",
    ));
    Ok(findings)
}

/// How many members may fail before no lock can be acquired.
async fn quorum(connection: &Connection, reports: &[MemberStatus]) -> Finding {
    let request = MemberListRequest {};
    let list = connection.call::<_, MemberListResponse>(MEMBERS, request, REQUEST_LIMIT).await;
    let members = match list {
        Ok(list) => list.body.members,
        Err(error) => {
            return Finding::new(Severity::Fault, "quorum", error.to_string()).advise(
                "check the servers: without a majority of members no lock can be acquired",
            );
        }
    };
    let voters: Vec<_> = members.iter().filter(|member| !member.is_learner).collect();
    let spare = voters.len().saturating_sub(1) / 2;
    let seen: BTreeSet<u64> = reports.iter().filter_map(|(_, status)| member_of(status)).collect();
    let unseen: Vec<_> = voters.iter().filter(|member| !seen.contains(&member.id)).collect();
    let detail = format!("{} voting members, {spare} of them may fail", voters.len());
    if spare == 0 {
        return Finding::new(Severity::Notice, "quorum", detail)
            .advise("run three members or five: then one or two may fail");
    }
    if let Some(member) = unseen.first() {
        let detail = format!("{detail}; the URL does not reach `{}`", member.name);
        return Finding::new(Severity::Notice, "quorum", detail)
            .advise("name every member in the URL, so that requests can go to any of them");
    }
    Finding::good("quorum", detail)
}

async fn alarms(connection: &Connection) -> Finding {
    let response = connection.call::<_, AlarmResponse>(ALARM, AlarmRequest {}, REQUEST_LIMIT).await;
    let alarms = match response {
        Ok(response) => response.body.alarms,
        Err(error) => {
            return Finding::new(Severity::Notice, "alarms", error.to_string())
                .advise("run `etcdctl alarm list` as a user who may");
        }
    };
    match alarms.iter().map(|alarm| alarm.alarm).max() {
        None | Some(..=0) => Finding::good("alarms", "none"),
        Some(1) => Finding::new(Severity::Fault, "alarms", "no space: no lock can be acquired")
            .advise("compact and defragment, or raise the quota; then etcdctl alarm disarm"),
        Some(_) => Finding::new(Severity::Fault, "alarms", "the data of a member is corrupt")
            .advise("replace that member; until then two clients may hold one lock"),
    }
}

/// Writes and deletes a key where tombstones are.
async fn rights(connection: &Connection, space: &Space) -> Finding {
    let probe = async {
        let lease = grant(connection, 1, REQUEST_LIMIT).await?.id;
        let key = space.tombstone_key(lease, Owner::random());
        let put = layout::put_op(&key, String::new(), lease);
        for op in [put, layout::delete_op(&key)] {
            let request = TxnRequest { compare: vec![], success: vec![op], failure: vec![] };
            connection.call::<_, TxnResponse>(TXN, request, REQUEST_LIMIT).await?;
        }
        Ok::<(), Error>(())
    };
    match probe.await {
        Ok(()) => Finding::good("rights", "keys can be written and deleted"),
        Err(error) => Finding::new(Severity::Fault, "rights", error.to_string())
            .advise("grant this user's role `readwrite` on the prefix of the locks"),
    }
}

fn member_of(status: &Result<StatusResponse>) -> Option<u64> {
    Some(status.as_ref().ok()?.header.as_ref()?.member_id)
}

/// A member that does not respond, or reports errors.
fn unhealthy((host, status): &MemberStatus) -> Option<Finding> {
    let detail = match status {
        Err(error) => format!("`{host}`: {error}"),
        Ok(status) if !status.errors.is_empty() => {
            format!("`{host}` reports: {}", status.errors.join(", "))
        }
        Ok(_) => return None,
    };
    Some(Finding::new(Severity::Warning, "member", detail).advise("check this member and its log"))
}

fn leader(reports: &[MemberStatus]) -> Finding {
    let statuses = reports.iter().filter_map(|(_, status)| status.as_ref().ok());
    let leaders: BTreeSet<u64> = statuses.clone().map(|status| status.leader).collect();
    let size = statuses.map(|status| status.db_size).max().unwrap_or(0) / 1_000_000;
    match (leaders.len(), leaders.first()) {
        (1, Some(leader)) if *leader != 0 => {
            Finding::good("leader", format!("all members agree on one; database {size} MB"))
        }
        _ => Finding::new(Severity::Warning, "leader", "the members do not agree on one")
            .advise("run this again in a few seconds; if it stays so, check their network"),
    }
}

fn versions(reports: &[MemberStatus]) -> Vec<Finding> {
    let versions = reports.iter().filter_map(|(_, status)| Some(&status.as_ref().ok()?.version));
    let versions: BTreeSet<&String> = versions.collect();
    let finding = |version: &&String| match numbers(version) {
        Some((..=2, ..)) | Some((3, ..=3, _)) => {
            Finding::new(Severity::Fault, "version", format!("{version} is too old"))
                .advise("run 3.4 or later")
        }
        Some((3, 5, ..=2)) => {
            let detail = format!("{version} can lose committed writes when it is killed");
            Finding::new(Severity::Warning, "version", detail).advise("run 3.5.14 or later")
        }
        Some((3, 4, ..=30) | (3, 5, ..=12)) => {
            let detail = format!(
                "{version}: a leader that hangs and is deposed can still end leases that are \
                 renewed at the next one, so that two clients hold one lock (etcd-io/etcd#15247)"
            );
            Finding::new(Severity::Warning, "version", detail)
                .advise("run 3.5.14 or later, or 3.4.32 or later")
        }
        Some((3, 4, 31) | (3, 5, 13)) => {
            let detail = format!(
                "{version}: revisions, and so tokens, can go back if it crashes while it compacts \
                 (etcd-io/etcd#17780)"
            );
            Finding::new(Severity::Warning, "version", detail)
                .advise("run 3.5.14 or later, or 3.4.32 or later")
        }
        _ => Finding::good("version", (*version).clone()),
    };
    versions.iter().map(finding).collect()
}

fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_harmful_version_is_named() {
        let severity_of = |version: &str| {
            let status =
                StatusResponse { version: version.to_owned(), ..StatusResponse::default() };
            versions(&[("h".to_owned(), Ok(status))])[0].severity
        };
        assert_eq!(severity_of("3.3.27"), Severity::Fault);
        for version in ["3.4.0", "3.4.23", "3.4.31", "3.5.1", "3.5.12", "3.5.13"] {
            assert_eq!(severity_of(version), Severity::Warning, "{version}");
        }
        assert_eq!(severity_of("3.4.32"), Severity::Good);
        assert_eq!(severity_of("3.5.14"), Severity::Good);
        assert_eq!(severity_of("3.5.16"), Severity::Good);
        assert_eq!(severity_of("3.6.0-rc.1"), Severity::Good);
    }
}
