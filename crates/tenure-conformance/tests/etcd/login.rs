//! Logins that expire while a client is open: etcd's tokens last some minutes.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Etcd;
use tenure::{Config, Credentials, Key};
use tenure_conformance::context::{acquire_free, until_waiters, within};
use tenure_conformance::server_cases;
use tenure_servers::{Bundle, Cluster, tool};

use super::traffic::metric;
use super::{name, require_login};

server_cases! {
    a_handoff_is_pushed_after_the_login_expired Etcd;
    many_requests_at_once_share_one_login Etcd;
    each_login_gets_credentials_of_its_own Etcd;
}

fn url(cluster: &Cluster) -> String {
    cluster.url().replace("//", "//me:secret@") + "/app/"
}

/// Makes every token of the user invalid, as the end of its time does, by giving it the password
/// that it has.
fn end_logins(cluster: &Cluster) -> Result<()> {
    let mut command = tool(Bundle::Etcd, "etcdctl")?;
    command.args(["--endpoints", &cluster.node().address(), "--user", "root:r"]);
    command.args(["user", "passwd", "me", "--interactive=false"]).env("ETCDCTL_API", "3");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(b"secret\n")?;
    ensure!(child.wait()?.success(), "etcdctl could not change the password");
    Ok(())
}

/// The next poll would come after ten seconds.
async fn a_handoff_is_pushed_after_the_login_expired(cluster: &Cluster) -> Result<()> {
    require_login(cluster.node())?;
    let one = tenure::connect(&url(cluster)).await?;
    let two = tenure::connect(&url(cluster)).await?;
    for round in 0..3 {
        let name = name();
        let ttl = Duration::from_secs(30);
        let guard = acquire_free(&one.lock(&name).ttl(ttl)).await?;
        let waiter = tokio::spawn(two.lock(&name).ttl(ttl).acquire());
        until_waiters(&one.lock(&name), 1).await?;
        guard.release().await?;
        let what = format!("the handoff of round {round}");
        within(Duration::from_secs(5), &what, waiter).await???.release().await?;
        end_logins(cluster)?;
    }
    Ok(())
}

/// The password is not in the URL: the caller's code gives it for each login.
async fn each_login_gets_credentials_of_its_own(cluster: &Cluster) -> Result<()> {
    require_login(cluster.node())?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let config: Config = format!("{}/app/", cluster.url()).parse()?;
    let config = config.credentials(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, std::io::Error>(Credentials::new("me", "secret")) }
    });
    let client = config.connect().await?;
    for logins in 1..=3 {
        acquire_free(&client.lock(name())).await?.release().await?;
        let calls = calls.load(Ordering::Relaxed);
        ensure!(calls == logins, "{calls} calls for {logins} logins");
        end_logins(cluster)?;
    }
    Ok(())
}

/// A login costs the server some 70 ms of one core, and much more on a busy machine.
async fn many_requests_at_once_share_one_login(cluster: &Cluster) -> Result<()> {
    require_login(cluster.node())?;
    let etcd = Etcd::open(&url(cluster)).await?;
    let ttl = Duration::from_secs(20);
    let claim = || Ok(Claim::new(Key::new(name())?, Owner::random(), ttl));
    // Makes the lease that all of them share, and the first login.
    etcd.try_acquire(&claim()?).await?.granted()?;
    end_logins(cluster)?;
    let logins =
        || metric(cluster.node(), "grpc_server_started_total{grpc_method=\"Authenticate\"");
    let before = logins()?;
    let claims = (0..200).map(|_| claim()).collect::<Result<Vec<_>>>()?;
    let granted = join_all(claims.iter().map(|claim| etcd.try_acquire(claim))).await;
    let failed: Vec<_> = granted.iter().filter_map(|granted| granted.as_ref().err()).collect();
    ensure!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
    let logins = logins()? - before;
    ensure!((1.0..3.0).contains(&logins), "{logins} logins");
    Ok(())
}
