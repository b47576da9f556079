//! Where the lock's own server keeps the resource, the lock itself is the fence: a condition makes
//! the caller's transaction fail unless the grant is still held.

use anyhow::{Context, Result, ensure};
use tenure::backends::consul::Condition;
use tenure::backends::{Consul, Zookeeper};
use tenure::{Config, Guard, Key};
use tenure_servers::wire::http::request;
use zookeeper_client::{Acls, CreateMode};

use crate::{cases, unique};

cases! {
    a_check_holds_exactly_as_long_as_the_lock_in_either_layout on &["zookeeper"];
    checks_hold_exactly_as_long_as_the_lock on &["consul"];
}

/// Acquires the lock, loses it to an eviction, and acquires it again with the same client.
async fn lose(config: Config, key: &Key) -> Result<(Guard, Guard)> {
    let locks = config.connect().await?;
    let old = locks.lock(key).acquire().await?;
    ensure!(locks.lock(key).evict(old.token()).await?);
    let new = locks.lock(key).acquire().await?;
    Ok((old, new))
}

async fn a_check_holds_exactly_as_long_as_the_lock_in_either_layout(url: String) -> Result<()> {
    let servers = url.trim_start_matches("zk://");
    let client = zookeeper_client::Client::connect(servers).await?;
    for layout in ["queue", "ephemeral"] {
        let key = Key::new(unique(layout))?;
        let data = format!("/{}", unique("data"));
        let anyone = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&data, b"0", &anyone).await?;
        let url = format!("{url}/{}?session=4s&layout={layout}", unique("locks"));
        let zookeeper = Zookeeper::open(&url).await?;
        let locks = url.parse::<Config>()?.connect().await?;
        let guard = locks.lock(&key).acquire().await?;
        let condition = zookeeper.condition(&key, guard.token()).await?.context("it is held")?;
        let write = async |text: &str| {
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&condition.path, condition.version)?;
            writer.add_set_data(&data, text.as_bytes(), None)?;
            anyhow::Ok(writer.commit().await.is_ok())
        };
        ensure!(write("1").await?, "{layout}: refused while the lock is held");
        let stale = guard.token();
        ensure!(locks.lock(&key).evict(stale).await?);
        let next = locks.lock(&key).acquire().await?;
        ensure!(!write("2").await?, "{layout}: admitted after the lock was lost");
        ensure!(client.get_data(&data).await?.0 == b"1");
        ensure!(zookeeper.condition(&key, stale).await?.is_none());
        ensure!(zookeeper.condition(&key, next.token()).await?.is_some());
        drop(guard);
        next.release().await?;
    }
    Ok(())
}

async fn checks_hold_exactly_as_long_as_the_lock(url: String) -> Result<()> {
    let port: u16 = url.rsplit_once(':').context("a port")?.1.parse()?;
    let key = Key::new(unique("condition"))?;
    let data = unique("data");
    let consul = Consul::open(&url).await?;
    let write = async |condition: &Condition| {
        let Condition { key, session, index, .. } = condition;
        let body = format!(
            r#"[{{"KV": {{"Verb": "check-session", "Key": "{key}", "Session": "{session}"}}}},
                {{"KV": {{"Verb": "check-index", "Key": "{key}", "Index": {index}}}}},
                {{"KV": {{"Verb": "set", "Key": "{data}", "Value": "MQ=="}}}}]"#
        );
        let send = move || request(port, "PUT", "/v1/txn", &body);
        anyhow::Ok(tokio::task::spawn_blocking(send).await??.0 == 200)
    };
    let config: Config = url.parse()?;
    let locks = config.clone().connect().await?;
    let guard = locks.lock(&key).acquire().await?;
    let condition = consul.condition(&key, guard.token()).await?.context("it is held")?;
    ensure!(write(&condition).await?, "refused while the lock is held");
    guard.release().await?;
    ensure!(!write(&condition).await?, "admitted after the release");
    ensure!(consul.condition(&key, condition_token(&condition)?).await?.is_none());
    // The same client acquires it again, by the same session.
    let (old, new) = lose(config, &key).await?;
    ensure!(consul.condition(&key, old.token()).await?.is_none());
    let condition = consul.condition(&key, new.token()).await?.context("it is held again")?;
    ensure!(write(&condition).await?);
    let mut stale = condition.clone();
    stale.index = old.token().get() / 1024;
    ensure!(!write(&stale).await?, "the session alone admitted a stale grant");
    drop(old);
    new.release().await?;
    Ok(())
}

fn condition_token(condition: &Condition) -> Result<tenure::FencingToken> {
    tenure::FencingToken::new(condition.index * 1024).context("a token")
}
