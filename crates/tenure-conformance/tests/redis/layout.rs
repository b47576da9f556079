//! What is stored at the server, byte by byte.

use std::net::TcpStream;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};
use tenure::{Client, ErrorKind, Severity};
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Flavor};

use crate::{LONG, SECOND, acquire, connect, execute, number, texts, wait_for};

server_cases! {
    a_held_lock_is_redissons_hash Redis;
    a_held_lock_is_a_string_in_the_plain_layout Redis;
    a_release_leaves_only_the_state_and_that_expires Redis;
    a_url_says_for_how_long_tokens_are_remembered Redis;
    what_is_not_a_lock_is_an_error_that_says_so Redis;
    a_database_and_a_password_are_used Redis;
    a_socket_file_leads_to_the_same_locks Redis;
    doctor_finds_what_would_do_harm Redis;
    doctor_finds_a_clock_that_is_off Redis |options| options.clock();
    valkey_works Redis |options| options.flavor(Flavor::Valkey);
    redis_8_works Redis |options| options.flavor(Flavor::Redis8);
}

async fn a_held_lock_is_redissons_hash(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let guard = acquire(&client, "orders/42", LONG).await?;
    ensure!(texts(node, &["TYPE", "orders/42"])? == ["hash"]);
    let fields = texts(node, &["HGETALL", "orders/42"])?;
    ensure!(fields.len() == 2 && fields[1] == "1", "{fields:?}");
    let (client_id, thread) = fields[0].split_once(':').context("uuid:number")?;
    ensure!(client_id.len() == 36 && client_id.matches('-').count() == 4, "{client_id}");
    ensure!(thread.parse::<u64>().is_ok(), "{thread}");
    let left = number(node, &["PTTL", "orders/42"])?;
    ensure!((29_000..=30_000).contains(&left), "{left}");
    let token = texts(node, &["HGET", "tenure:s:{orders/42}", "first"])?;
    ensure!(token == [guard.token().to_string()], "{token:?} {:?}", guard.token());
    guard.release().await?;
    ensure!(number(node, &["EXISTS", "orders/42"])? == 0);
    Ok(())
}

async fn a_held_lock_is_a_string_in_the_plain_layout(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "layout=plain").await?;
    let node = cluster.node();
    let guard = acquire(&client, "orders/42", LONG).await?;
    ensure!(texts(node, &["TYPE", "orders/42"])? == ["string"]);
    ensure!(texts(node, &["GET", "orders/42"])?[0].len() > 36);
    ensure!(number(node, &["PTTL", "orders/42"])? > 29_000);
    guard.release().await?;
    ensure!(number(node, &["EXISTS", "orders/42"])? == 0);
    Ok(())
}

async fn a_release_leaves_only_the_state_and_that_expires(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    for name in ["a", "b", "{c}d", "e}f"] {
        let guard = acquire(&one, name, SECOND * 5).await?;
        let waiter = wait_for(&two, name, SECOND * 5);
        until_waiters(&one.lock(name), 1).await?;
        guard.release().await?;
        soon("the waiter's grant", waiter).await???.release().await?;
    }
    let mut keys = texts(cluster.node(), &["KEYS", "*"])?;
    keys.sort();
    let own = keys.iter().filter(|key| key.starts_with("tenure:s:")).count();
    ensure!(keys.len() == 4 && own == 4, "{keys:?}");
    for key in keys {
        let left = number(cluster.node(), &["PTTL", &key])?;
        // An hour, up to an eighth more, and by how much the last token of a range is ahead.
        ensure!((3_500_000..=4_050_010).contains(&left), "{key}: {left}");
    }
    Ok(())
}

async fn a_url_says_for_how_long_tokens_are_remembered(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "memory=90s").await?;
    let node = cluster.node();
    for (key, ttl, most) in [("a", SECOND * 5, 90_000), ("b", SECOND * 60, 120_000)] {
        acquire(&client, key, ttl).await?.release().await?;
        let left = number(node, &["PTTL", &format!("tenure:s:{{{key}}}")])?;
        // Up to an eighth of the memory more, so that not every grant has to set it.
        ensure!((most - 20_000..=most + 90_000 / 8 + 10).contains(&left), "{key}: {left}");
    }
    let error = connect(cluster, "memory=60000000000000d").await.unwrap_err();
    ensure!(error.to_string().contains("memory"), "{error}");
    Ok(())
}

async fn what_is_not_a_lock_is_an_error_that_says_so(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let hash = connect(cluster, "").await?;
    let plain = connect(cluster, "layout=plain").await?;
    execute(node, &["SET", "string", "x", "PX", "60000"])?;
    execute(node, &["RPUSH", "list", "x"])?;
    execute(node, &["HSET", "eternal", "x", "1"])?;
    execute(node, &["HSET", "rwlock", "mode", "read", "x", "1"])?;
    execute(node, &["PEXPIRE", "rwlock", "60000"])?;
    for (client, key) in [
        (&hash, "string"),
        (&hash, "list"),
        (&hash, "eternal"),
        (&hash, "rwlock"),
        (&plain, "list"),
    ] {
        for _ in 0..2 {
            let error = client.lock(key).try_acquire().await.unwrap_err();
            ensure!(error.kind() == ErrorKind::Invalid, "{key}: {error:?}");
            ensure!(error.to_string().contains(key), "{error}");
        }
    }
    let guard = acquire(&hash, "held", LONG).await?;
    let error = plain.lock("held").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid && error.to_string().contains("layout"), "{error}");
    ensure!(guard.check().is_ok());
    guard.release().await?;
    ensure!(texts(node, &["GET", "string"])? == ["x"], "it was touched");
    Ok(())
}

async fn a_database_and_a_password_are_used(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let client = tenure::connect(&format!("{}/5", node.url())).await?;
    let guard = acquire(&client, "k", LONG).await?;
    let info = texts(node, &["INFO", "keyspace"])?;
    ensure!(info[0].contains("db5:") && !info[0].contains("db0:"), "{info:?}");
    guard.release().await?;
    // As the page of this backend advises.
    let rights = "~app/* ~tenure:*app/* &tenure:* &redisson_lock__channel:* +@all -@dangerous";
    let user = ["ACL", "SETUSER", "app", "on", ">s3cret/"].into_iter().chain(rights.split(' '));
    execute(node, &user.collect::<Vec<_>>())?;
    let url = format!("redis://app:s3cret%2F@{}", node.address());
    let client = tenure::connect(&url).await?;
    acquire(&client, "app/k", LONG).await?.release().await?;
    let error = client.lock("other").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(!format!("{client:?} {error:?}").contains("s3cret"));
    Ok(())
}

async fn a_socket_file_leads_to_the_same_locks(cluster: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("redis.sock");
    let listener = UnixListener::bind(&path)?;
    let port = cluster.node().port();
    // Ends with the test's process.
    std::thread::spawn(move || -> std::io::Result<()> {
        for inside in listener.incoming() {
            let inside = inside?;
            let outside = TcpStream::connect(("127.0.0.1", port))?;
            let (mut from, mut to) = (inside.try_clone()?, outside.try_clone()?);
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut from, mut to) = (outside, inside);
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        Ok(())
    });
    let password = cluster.node().password().context("a password")?;
    let url = format!("redis+unix://:{password}@{}?db=3", path.display());
    let (inside, outside) =
        (tenure::connect(&url).await?, tenure::connect(&(cluster.node().url() + "/3")).await?);
    let guard = acquire(&inside, "k", LONG).await?;
    let waiter = wait_for(&outside, "k", LONG);
    until_waiters(&inside.lock("k"), 1).await?;
    guard.release().await?;
    let guard = soon("the outer waiter's grant", waiter).await???;
    let waiter = wait_for(&inside, "k", LONG);
    until_waiters(&outside.lock("k"), 1).await?;
    guard.release().await?;
    soon("the inner waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn doctor_finds_a_clock_that_is_off(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    cluster.node().shift_clock(-60_000)?;
    let found = client.doctor().await?;
    let clock = found.iter().find(|finding| finding.subject == "clock").context("a finding")?;
    ensure!(clock.severity == Severity::Warning, "{clock:?}");
    Ok(())
}

async fn doctor_finds_what_would_do_harm(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let severities = async |client: &Client| -> Result<Vec<(String, Severity)>> {
        let found = client.doctor().await?;
        Ok(found.into_iter().map(|finding| (finding.subject, finding.severity)).collect())
    };
    let good = severities(&client).await?;
    ensure!(good.iter().all(|(_, severity)| *severity == Severity::Good), "{good:?}");
    ensure!(good.len() >= 8, "{good:?}");
    for (name, value) in
        [("maxmemory", "1000000000"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")]
    {
        execute(node, &["CONFIG", "SET", name, value])?;
    }
    execute(node, &["ACL", "SETUSER", "meek", "on", ">pw", "~*", "+@all", "-@scripting", "&*"])?;
    // An empty server uses more than this.
    execute(node, &["CONFIG", "SET", "maxmemory", "500000"])?;
    let url = format!("redis://meek:pw@{}?replicas=1", node.address());
    let bad = severities(&tenure::connect(&url).await?).await?;
    for (subject, severity) in [
        ("eviction", Severity::Fault),
        ("memory", Severity::Warning),
        ("persistence", Severity::Warning),
        ("scripts", Severity::Fault),
        ("replicas", Severity::Fault),
    ] {
        ensure!(bad.contains(&(subject.into(), severity)), "{subject}: {bad:?}");
    }
    Ok(())
}

async fn valkey_works(cluster: &Cluster) -> Result<()> {
    works(cluster).await
}

async fn redis_8_works(cluster: &Cluster) -> Result<()> {
    works(cluster).await
}

async fn works(cluster: &Cluster) -> Result<()> {
    for options in ["", "layout=plain", "order=barging"] {
        let (one, two) = (connect(cluster, options).await?, connect(cluster, options).await?);
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        let token = guard.token();
        guard.release().await?;
        let guard = soon("the waiter's grant", waiter).await???;
        ensure!(guard.token() > token);
        ensure!(one.lock("k").evict(guard.token()).await?);
        soon("the loss", guard.lost()).await?;
        let mut writer = acquire(&one, "k", LONG).await?;
        let reader = tokio::spawn(two.lock("k").shared().ttl(LONG).acquire());
        until_waiters(&one.lock("k"), 1).await?;
        writer.downgrade().await?;
        soon("the reader's grant", reader).await???.release().await?;
        writer.release().await?;
    }
    Ok(())
}
