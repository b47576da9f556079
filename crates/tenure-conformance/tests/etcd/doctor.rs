//! Logins, rights, and what the doctor reports of an unhealthy server.

use anyhow::{Context, Result, ensure};
use tenure::{ErrorKind, Severity};
use tenure_conformance::context::acquire_free;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::{gateway, require_login};

server_cases! {
    a_client_needs_a_login_where_the_server_requires_one Etcd;
    doctor_reports_a_full_database_as_a_fault Etcd;
    doctor_names_a_missing_member Etcd3;
}

async fn a_client_needs_a_login_where_the_server_requires_one(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let url = |login: &str, path: &str| cluster.url().replace("//", &format!("//{login}")) + path;
    let before = tenure::connect(&url("me:secret@", "/app/")).await?;
    acquire_free(&before.lock("a")).await?.release().await?;
    require_login(node)?;
    acquire_free(&before.lock("a")).await?.release().await?;
    for login in ["", "me:wrong@"] {
        let error = tenure::connect(&url(login, "/app/")).await.unwrap_err();
        ensure!(error.kind() == ErrorKind::Denied, "{login}: {error:?}");
        ensure!(!format!("{error:?}").contains("wrong"), "the password is shown: {error:?}");
    }
    let allowed = tenure::connect(&url("me:secret@", "/app/")).await?;
    acquire_free(&allowed.lock("k")).await?.release().await?;
    let fault = allowed.doctor().await?.into_iter().find(|found| found.severity == Severity::Fault);
    ensure!(fault.is_none(), "{fault:?}");

    let elsewhere = tenure::connect(&url("me:secret@", "/other/")).await?;
    let error = elsewhere.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    let found = elsewhere.doctor().await?;
    let rights = found.iter().find(|found| found.subject == "rights").context("a finding")?;
    ensure!(rights.severity == Severity::Fault, "{rights}");
    Ok(())
}

async fn doctor_reports_a_full_database_as_a_fault(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    gateway(cluster.node(), "/v3/maintenance/alarm", r#"{"action":1,"alarm":1}"#)?;
    let found = client.doctor().await?;
    let alarm = found.iter().find(|found| found.subject == "alarms").context("a finding")?;
    ensure!(alarm.severity == Severity::Fault && !alarm.advice.is_empty(), "{alarm}");
    let error = client.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains("space"), "{error}");
    Ok(())
}

async fn doctor_names_a_missing_member(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let follower = follower.context("there are three")?;
    follower.kill()?;
    let found = client.doctor().await?;
    let member = found.iter().find(|found| found.subject == "member").context("a finding")?;
    ensure!(member.detail.contains(&follower.address()), "{member}");
    ensure!(found.iter().all(|found| found.severity < Severity::Fault), "{found:?}");
    Ok(())
}
