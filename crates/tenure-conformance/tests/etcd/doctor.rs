//! Logins, rights, and what the doctor says about a server that is not well.

use anyhow::{Context, Result, ensure};
use tenure::{ErrorKind, Grade};
use tenure_conformance::bench::take;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::{gateway, require_login};

server_cases! {
    a_login_is_needed_where_the_server_wants_one Etcd;
    a_full_database_is_a_fault Etcd;
    a_missing_member_is_named Etcd3;
}

async fn a_login_is_needed_where_the_server_wants_one(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let url = |login: &str, path: &str| cluster.url().replace("//", &format!("//{login}")) + path;
    let before = tenure::connect(&url("me:secret@", "/app/")).await?;
    take(&before.lock("a")).await?.release().await?;
    require_login(node)?;
    take(&before.lock("a")).await?.release().await?;
    for login in ["", "me:wrong@"] {
        let error = tenure::connect(&url(login, "/app/")).await.unwrap_err();
        ensure!(error.kind() == ErrorKind::Denied, "{login}: {error:?}");
        ensure!(!format!("{error:?}").contains("wrong"), "the password is shown: {error:?}");
    }
    let allowed = tenure::connect(&url("me:secret@", "/app/")).await?;
    take(&allowed.lock("k")).await?.release().await?;
    let fault = allowed.examine().await?.into_iter().find(|found| found.grade == Grade::Fault);
    ensure!(fault.is_none(), "{fault:?}");

    let elsewhere = tenure::connect(&url("me:secret@", "/other/")).await?;
    let error = elsewhere.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    let found = elsewhere.examine().await?;
    let rights = found.iter().find(|found| found.subject == "rights").context("it looks")?;
    ensure!(rights.grade == Grade::Fault, "{rights}");
    Ok(())
}

async fn a_full_database_is_a_fault(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    gateway(cluster.node(), "/v3/maintenance/alarm", r#"{"action":1,"alarm":1}"#)?;
    let found = client.examine().await?;
    let alarm = found.iter().find(|found| found.subject == "alarms").context("it looks")?;
    ensure!(alarm.grade == Grade::Fault && !alarm.advice.is_empty(), "{alarm}");
    let error = client.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains("space"), "{error}");
    Ok(())
}

async fn a_missing_member_is_named(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let follower = follower.context("there are three")?;
    follower.kill()?;
    let found = client.examine().await?;
    let member = found.iter().find(|found| found.subject == "member").context("it looks")?;
    ensure!(member.detail.contains(&follower.address()), "{member}");
    ensure!(found.iter().all(|found| found.grade < Grade::Fault), "{found:?}");
    Ok(())
}
