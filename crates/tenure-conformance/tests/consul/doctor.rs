//! The findings of the doctor, and the error for a server that cannot be reached.

use anyhow::{Context, Result, ensure};
use tenure::{ErrorKind, Severity};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::{connect, url};

server_cases! {
    doctor_warns_of_a_single_server Consul;
    doctor_finds_three_servers_good Consul3;
    unreachable_server_is_named_in_the_error Consul;
}

async fn doctor_warns_of_a_single_server(cluster: &Cluster) -> Result<()> {
    let findings = connect(cluster).await?.doctor().await?;
    let find = |subject: &str| findings.iter().find(|finding| finding.subject == subject);
    for subject in ["leader", "version", "sessions", "keys", "lock-delay"] {
        let finding = find(subject).with_context(|| format!("{subject} in {findings:?}"))?;
        ensure!(finding.severity == Severity::Good, "{finding}");
    }
    for subject in ["servers", "persistence"] {
        let finding = find(subject).with_context(|| format!("{subject} in {findings:?}"))?;
        ensure!(finding.severity == Severity::Warning, "{finding}");
    }
    let wrong = tenure::connect(&format!("consul://{}?min_ttl=10ms", cluster.hosts())).await?;
    let findings = wrong.doctor().await?;
    let sessions = findings.iter().find(|finding| finding.subject == "sessions");
    let sessions = sessions.context("sessions were checked")?;
    ensure!(sessions.severity == Severity::Fault, "{sessions}");
    ensure!(sessions.to_string().contains("must be between"), "{sessions}");
    Ok(())
}

async fn doctor_finds_three_servers_good(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(&cluster.hosts(), "lock_delay=2s")).await?;
    let findings = client.doctor().await?;
    let bad = findings.iter().find(|finding| finding.severity > Severity::Notice);
    ensure!(bad.is_none(), "{bad:?}");
    let delay = findings.iter().find(|finding| finding.subject == "lock-delay");
    ensure!(delay.is_some_and(|finding| finding.detail.starts_with("2s")), "{delay:?}");
    Ok(())
}

async fn unreachable_server_is_named_in_the_error(cluster: &Cluster) -> Result<()> {
    let address = cluster.node().address();
    cluster.node().kill()?;
    let error = tenure::connect(&url(&address, "")).await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&address), "{error}");
    Ok(())
}
