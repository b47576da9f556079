//! Encrypted connections to servers that were started with a certificate: both sides prove who
//! they are, waiting and waking work, and no connection gets less than the URL says.

use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Completion, Trial};
use tempfile::TempDir;
use tenure::{Client, ErrorKind};
use tenure_conformance::certificates;
use tenure_conformance::context::{acquire_free, soon, until_waiters};
use tenure_servers::{Cluster, Node, Options, Topology, require, start};

/// No case takes this long; one that hangs is a failure.
const LONGEST: Duration = Duration::from_secs(90);

fn main() {
    let arguments = Arguments::from_args();
    let rows: [(&str, Topology, Urls); 5] = [
        ("consul", Topology::Consul, |node, files| {
            format!("consuls://localhost:{}?{files}", node.tls_port())
        }),
        ("etcd", Topology::Etcd, |node, files| {
            format!("etcds://localhost:{}?{files}", node.tls_port())
        }),
        ("mysql", Topology::Mariadb, |node, files| {
            format!("{}?sslmode=require&{files}", at_localhost(node))
        }),
        ("mysql-oracle", Topology::Mysql, |node, files| {
            let url = node.url().replace(node.host(), "localhost");
            format!("{url}?sslmode=require&{files}")
        }),
        ("postgres", Topology::Postgres, |node, files| {
            format!("{}?sslmode=verify-full&{files}", at_localhost(node))
        }),
    ];
    let trials = rows.map(|(name, topology, url)| {
        Trial::ignorable_test(format!("{name}::both_sides_prove_who_they_are"), move || {
            let run = || run(topology, url);
            match run() {
                Ok(Some(missing)) => Ok(Completion::ignored_with(missing)),
                Ok(None) => Ok(Completion::Completed),
                Err(error) => Err(format!("{error:?}").into()),
            }
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// By the name that its certificate is for.
fn at_localhost(node: &Node) -> String {
    node.url_at(&format!("localhost:{}", node.tls_port()))
}

/// The URL of a server, with these options.
type Urls = fn(&Node, &str) -> String;

/// Runs the case, or says why the server cannot be had.
fn run(topology: Topology, url: Urls) -> Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    certificates::write(folder.path())?;
    let cluster = match start(topology, &Options::default().tls(folder.path())) {
        Ok(cluster) => cluster,
        Err(error) if error.is_missing() && !require(topology.name()) => {
            return Ok(Some(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let case = both_sides_prove_who_they_are(&cluster, &folder, url);
    runtime.block_on(async { tokio::time::timeout(LONGEST, case).await })??;
    Ok(None)
}

async fn both_sides_prove_who_they_are(
    cluster: &Cluster,
    folder: &TempDir,
    url: Urls,
) -> Result<()> {
    let at = |name: &str| folder.path().join(name).display().to_string();
    let ca = format!("ca={}", at("ca.pem"));
    let own = format!("cert={}&key={}", at("client.pem"), at("client.key"));
    let good = url(cluster.node(), &format!("{ca}&{own}"));
    let (one, two) = (tenure::connect(&good).await?, tenure::connect(&good).await?);
    handed_off(&one, &two).await?;

    // Without the authority the client refuses the server: the system does not know it.
    refused(&url(cluster.node(), &own)).await?;
    if matches!(cluster.topology(), Topology::Consul | Topology::Etcd) {
        // Without its certificate the server refuses the client.
        refused(&url(cluster.node(), &ca)).await?;
    }
    // A server of another name is not the one that the URL names.
    let other = folder.path().join("other");
    std::fs::create_dir(&other)?;
    certificates::write(&other)?;
    refused(&url(cluster.node(), &format!("ca={}&{own}", other.join("ca.pem").display()))).await?;
    let half = tenure::connect(&url(cluster.node(), &format!("{ca}&key=x"))).await;
    ensure!(
        half.is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a key alone was accepted"
    );
    Ok(())
}

async fn handed_off(one: &Client, two: &Client) -> Result<()> {
    let ttl = Duration::from_secs(20);
    let guard = acquire_free(&one.lock("k").ttl(ttl)).await?;
    let waiter = tokio::spawn(two.lock("k").ttl(ttl).acquire());
    until_waiters(&one.lock("k"), 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn refused(url: &str) -> Result<()> {
    let error = soon("connect", tenure::connect(url)).await?.err();
    let kind = error.as_ref().map(tenure::Error::kind);
    ensure!(
        matches!(kind, Some(ErrorKind::Unavailable | ErrorKind::Denied | ErrorKind::Invalid)),
        "{url}: {error:?}"
    );
    Ok(())
}
