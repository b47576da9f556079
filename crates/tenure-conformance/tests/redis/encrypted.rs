//! Encrypted connections, with a private authority and a client's certificate.

use anyhow::{Result, ensure};
use tenure::ErrorKind;
use tenure_conformance::certificates;
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{LONG, acquire, execute, wait_for};

server_cases! {
    an_encrypted_connection_proves_both_sides Redis;
}

async fn an_encrypted_connection_proves_both_sides(cluster: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    certificates::write(folder.path())?;
    let node = cluster.node();
    // A port that is free now; the server says so if it is not any more.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let files = [("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")];
    let mut words = vec!["CONFIG".to_owned(), "SET".to_owned()];
    for (kind, file) in files {
        words.extend([format!("tls-{kind}-file"), at(file)]);
    }
    words.extend(["tls-auth-clients".into(), "yes".into(), "tls-port".into(), port.clone()]);
    execute(node, &words.iter().map(String::as_str).collect::<Vec<_>>())?;

    let plain = node.url_at(&format!("localhost:{port}")).replace("redis://", "rediss://");
    let url = format!("{plain}?ca={}", at("ca.pem"));
    let own = format!("&cert={}&key={}", at("client.pem"), at("client.key"));
    let (one, two) = (
        tenure::connect(&(url.clone() + &own)).await?,
        tenure::connect(&(url.clone() + &own)).await?,
    );
    let guard = acquire(&one, "k", LONG).await?;
    let waiter = wait_for(&two, "k", LONG);
    until_waiters(&one.lock("k"), 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;

    // Without its certificate the server refuses the client; without the authority the client
    // refuses the server.
    for wrong in [url, format!("{plain}?{}", &own[1..])] {
        let error = tenure::connect(&wrong).await.unwrap_err();
        ensure!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied), "{error:?}");
    }
    Ok(())
}
