//! What could break locks in etcd: members, versions, alarms, rights, and how short a lease may be.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ask::{self, TXN};
use super::proto::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse,
};
use super::session::grant;
use super::store::Store;
use super::wire::Method;
use crate::claim::Owner;
use crate::error::Result;
use crate::finding::{Finding, Grade};

/// An endpoint of the URL, and what its member says of itself.
type Told = (String, Result<StatusResponse>);

impl Store {
    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        let told: Vec<Told> = self.wire.ask_each(STATUS, StatusRequest {}, LOOK).await;
        let mut findings: Vec<_> = told.iter().filter_map(unreachable).collect();
        findings.push(self.members(&told).await);
        findings.push(leader(&told));
        findings.extend(versions(&told));
        findings.push(self.alarms().await);
        findings.push(self.rights().await);
        let shortest = self.min_ttl.as_secs();
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

    /// How many members may fail before nobody can lock.
    async fn members(&self, told: &[Told]) -> Finding {
        let list = self.wire.call::<_, MemberListResponse>(MEMBERS, MemberListRequest {}, LOOK);
        let members = match list.await {
            Ok(list) => list.body.members,
            Err(error) => {
                return Finding::new(Grade::Fault, "quorum", error.to_string())
                    .advise("look at the servers: without a majority of members no lock is had");
            }
        };
        let voters: Vec<_> = members.iter().filter(|member| !member.is_learner).collect();
        let spare = voters.len().saturating_sub(1) / 2;
        let seen: BTreeSet<u64> = told.iter().filter_map(|(_, status)| member_of(status)).collect();
        let unseen: Vec<_> = voters.iter().filter(|member| !seen.contains(&member.id)).collect();
        let detail = format!("{} voting members, {spare} of them may fail", voters.len());
        if spare == 0 {
            return Finding::new(Grade::Notice, "quorum", detail)
                .advise("run three members or five: then one or two may fail");
        }
        if let Some(member) = unseen.first() {
            let detail = format!("{detail}; the URL does not reach `{}`", member.name);
            return Finding::new(Grade::Notice, "quorum", detail)
                .advise("name every member in the URL, so that any of them can be asked");
        }
        Finding::good("quorum", detail)
    }

    async fn alarms(&self) -> Finding {
        let answer = self.wire.call::<_, AlarmResponse>(ALARM, AlarmRequest {}, LOOK).await;
        let alarms = match answer {
            Ok(answer) => answer.body.alarms,
            Err(error) => {
                return Finding::new(Grade::Notice, "alarms", error.to_string())
                    .advise("ask as a user who may: etcdctl alarm list");
            }
        };
        match alarms.iter().map(|alarm| alarm.alarm).max() {
            None | Some(..=0) => Finding::good("alarms", "none"),
            Some(1) => Finding::new(Grade::Fault, "alarms", "no space: nothing can be taken")
                .advise("compact and defragment, or raise the quota; then etcdctl alarm disarm"),
            Some(_) => Finding::new(Grade::Fault, "alarms", "the data of a member is corrupt")
                .advise("replace that member; until then two may hold one lock"),
        }
    }

    /// Writes and deletes a key where the marks of withdrawn claims are.
    async fn rights(&self) -> Finding {
        let probe = async {
            let lease = grant(&self.wire, 1, LOOK).await?.id;
            let key = self.space.void(lease, Owner::random());
            let (put, delete) = (ask::put(&key, String::new(), lease), ask::delete(&key));
            for op in [put, delete] {
                let request = TxnRequest { compare: vec![], success: vec![op], failure: vec![] };
                self.wire.call::<_, TxnResponse>(TXN, request, LOOK).await?;
            }
            Ok::<(), crate::Error>(())
        };
        match probe.await {
            Ok(()) => Finding::good("rights", "keys can be written and deleted"),
            Err(error) => Finding::new(Grade::Fault, "rights", error.to_string())
                .advise("grant this user's role `readwrite` on the prefix of the locks"),
        }
    }
}

fn member_of(status: &Result<StatusResponse>) -> Option<u64> {
    Some(status.as_ref().ok()?.header.as_ref()?.member_id)
}

fn unreachable((host, status): &Told) -> Option<Finding> {
    let detail = match status {
        Err(error) => format!("`{host}`: {error}"),
        Ok(status) if !status.errors.is_empty() => {
            format!("`{host}` reports: {}", status.errors.join(", "))
        }
        Ok(_) => return None,
    };
    Some(Finding::new(Grade::Warning, "member", detail).advise("look at this member and its log"))
}

fn leader(told: &[Told]) -> Finding {
    let answered = told.iter().filter_map(|(_, status)| status.as_ref().ok());
    let leaders: BTreeSet<u64> = answered.clone().map(|status| status.leader).collect();
    let size = answered.map(|status| status.db_size).max().unwrap_or(0) / 1_000_000;
    match (leaders.len(), leaders.first()) {
        (1, Some(leader)) if *leader != 0 => {
            Finding::good("leader", format!("all members agree on one; database {size} MB"))
        }
        _ => Finding::new(Grade::Warning, "leader", "the members do not agree on one")
            .advise("ask again in a few seconds; if it stays so, look at their network"),
    }
}

fn versions(told: &[Told]) -> Vec<Finding> {
    let versions = told.iter().filter_map(|(_, status)| Some(&status.as_ref().ok()?.version));
    let versions: BTreeSet<&String> = versions.collect();
    let grade = |version: &&String| match numbers(version) {
        Some((..=2, ..)) | Some((3, ..=3, _)) => {
            Finding::new(Grade::Fault, "version", format!("{version} is too old"))
                .advise("run 3.4 or later")
        }
        Some((3, 5, ..=2)) => {
            let detail = format!("{version} can lose committed writes when it is killed");
            Finding::new(Grade::Warning, "version", detail).advise("run 3.5.14 or later")
        }
        Some((3, 4, ..=30) | (3, 5, ..=12)) => {
            let detail = format!(
                "{version}: a leader that hangs and is deposed can still end leases that are \
                 renewed at the next one, so that two hold one lock (etcd-io/etcd#15247)"
            );
            Finding::new(Grade::Warning, "version", detail)
                .advise("run 3.5.14 or later, or 3.4.32 or later")
        }
        Some((3, 4, 31) | (3, 5, 13)) => {
            let detail = format!(
                "{version}: revisions, and so tokens, can go back if it crashes while it compacts \
                 (etcd-io/etcd#17780)"
            );
            Finding::new(Grade::Warning, "version", detail)
                .advise("run 3.5.14 or later, or 3.4.32 or later")
        }
        _ => Finding::good("version", (*version).clone()),
    };
    versions.iter().map(grade).collect()
}

fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

const STATUS: Method = Method("/etcdserverpb.Maintenance/Status");
const ALARM: Method = Method("/etcdserverpb.Maintenance/Alarm");
const MEMBERS: Method = Method("/etcdserverpb.Cluster/MemberList");
/// How long one answer may take.
const LOOK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_harmful_version_is_named() {
        let told = |version: &str| {
            let status =
                StatusResponse { version: version.to_owned(), ..StatusResponse::default() };
            versions(&[("h".to_owned(), Ok(status))])[0].grade
        };
        assert_eq!(told("3.3.27"), Grade::Fault);
        for version in ["3.4.0", "3.4.23", "3.4.31", "3.5.1", "3.5.12", "3.5.13"] {
            assert_eq!(told(version), Grade::Warning, "{version}");
        }
        assert_eq!(told("3.4.32"), Grade::Good);
        assert_eq!(told("3.5.14"), Grade::Good);
        assert_eq!(told("3.5.16"), Grade::Good);
        assert_eq!(told("3.6.0-rc.1"), Grade::Good);
    }
}
