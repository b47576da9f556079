//! What people are told.

use anyhow::{Context, Result, ensure};
use tenure::{ErrorKind, Grade};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::{connect, url};

server_cases! {
    the_doctor_names_what_is_wrong_with_one_server Consul;
    the_doctor_finds_three_servers_good Consul3;
    a_server_that_is_not_there_is_named Consul;
}

async fn the_doctor_names_what_is_wrong_with_one_server(cluster: &Cluster) -> Result<()> {
    let findings = connect(cluster).await?.examine().await?;
    let find = |subject: &str| findings.iter().find(|finding| finding.subject == subject);
    for subject in ["leader", "version", "sessions", "keys", "lock-delay"] {
        let finding = find(subject).with_context(|| format!("{subject} in {findings:?}"))?;
        ensure!(finding.grade == Grade::Good, "{finding}");
    }
    for subject in ["servers", "persistence"] {
        let finding = find(subject).with_context(|| format!("{subject} in {findings:?}"))?;
        ensure!(finding.grade == Grade::Warning, "{finding}");
    }
    let wrong = tenure::connect(&format!("consul://{}?min_ttl=10ms", cluster.hosts())).await?;
    let findings = wrong.examine().await?;
    let sessions = findings.iter().find(|finding| finding.subject == "sessions");
    let sessions = sessions.context("sessions were looked at")?;
    ensure!(sessions.grade == Grade::Fault, "{sessions}");
    ensure!(sessions.to_string().contains("must be between"), "{sessions}");
    Ok(())
}

async fn the_doctor_finds_three_servers_good(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(&cluster.hosts(), "lock_delay=2s")).await?;
    let findings = client.examine().await?;
    let bad = findings.iter().find(|finding| finding.grade > Grade::Notice);
    ensure!(bad.is_none(), "{bad:?}");
    let delay = findings.iter().find(|finding| finding.subject == "lock-delay");
    ensure!(delay.is_some_and(|finding| finding.detail.starts_with("2s")), "{delay:?}");
    Ok(())
}

async fn a_server_that_is_not_there_is_named(cluster: &Cluster) -> Result<()> {
    let address = cluster.node().address();
    cluster.node().kill()?;
    let error = tenure::connect(&url(&address, "")).await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&address), "{error}");
    Ok(())
}
