//! What operators should know about the nodes.

use super::quorum::Quorum;
use crate::backend::Backend;
use crate::error::Result;
use crate::finding::{Finding, Severity};

pub(super) async fn doctor(quorum: &Quorum) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut counting = 0;
    for (number, node) in quorum.nodes().iter().enumerate() {
        counting += usize::from(quorum.counts(node).await.unwrap_or(false));
        let name = format!("node {}", number + 1);
        match node.redis.doctor().await {
            Ok(found) => findings.extend(found.into_iter().map(|mut finding| {
                finding.subject = format!("{name}: {}", finding.subject);
                finding
            })),
            Err(error) => {
                let finding = Finding::new(Severity::Warning, name, error.to_string());
                findings.push(finding.advise("start it, or mend the way to it"));
            }
        }
    }
    findings.insert(0, majority(counting, quorum.nodes().len(), quorum.majority()));
    Ok(findings)
}

fn majority(counting: usize, all: usize, needed: usize) -> Finding {
    let detail = format!("{counting} of {all} nodes count, {needed} are needed");
    if counting == all {
        Finding::good("quorum", detail)
    } else if counting >= needed {
        Finding::new(Severity::Notice, "quorum", detail).advise("start the others")
    } else {
        Finding::new(Severity::Fault, "quorum", detail)
            .advise("start the others; one that was just started counts after `longest`")
    }
}
