//! ZooKeeper: what a lock costs compared with the three requests that Curator's layout needs at
//! least.

use anyhow::{Context, Result};
use tenure::Config;
use tenure::backends::Zookeeper;
use tenure_servers::{Options, Topology, start};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Zookeeper, &Options::default())?;
    let runtime = crate::runtime()?;
    let bare = runtime.block_on(Client::connect(&cluster.hosts()))?;
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    runtime.block_on(bare.mkdir("/bare", &container))?;
    let config: Config = cluster.url().parse()?;
    let backend = runtime.block_on(config.open())?;
    let ephemeral: Config = format!("{}/one?layout=ephemeral", cluster.url()).parse()?;
    let ephemeral = runtime.block_on(ephemeral.open())?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    Comparison::run(
        rounds,
        1,
        vec![
            ("create + getChildren, delete", Box::new(|| runtime.block_on(three(&bare)))),
            ("zookeeper backend: acquire, release", by_backend(&runtime, &*backend)),
            ("zookeeper backend, layout=ephemeral", by_backend(&runtime, &*ephemeral)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
        ],
    )
}

/// A write of the application, without and with the check that the lock is still held.
pub(crate) fn compare_condition(rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Zookeeper, &Options::default())?;
    let runtime = crate::runtime()?;
    let locks = runtime.block_on(tenure::connect(&cluster.url()))?;
    let guard = runtime.block_on(locks.lock("stock/42").acquire())?;
    let (client, condition) = runtime.block_on(async {
        let client = Client::connect(&cluster.hosts()).await?;
        let anyone = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/data", b"7", &anyone).await?;
        let zookeeper = Zookeeper::open(&cluster.url()).await?;
        let condition = zookeeper.condition(guard.key(), guard.token()).await?;
        anyhow::Ok((client, condition.context("it is held")?))
    })?;
    let write = async |fenced: bool| {
        let mut writer = client.new_multi_writer();
        if fenced {
            writer.add_check_version(&condition.path, condition.version)?;
        }
        writer.add_set_data("/data", b"7", None)?;
        writer.commit().await?;
        Ok(())
    };
    Comparison::run(
        rounds,
        1,
        vec![
            ("zookeeper: multi(setData)", Box::new(|| runtime.block_on(write(false)))),
            ("zookeeper: multi(check, setData)", Box::new(|| runtime.block_on(write(true)))),
        ],
    )
}

/// The requests of an uncontended lock, in the same two round trips as the backend's.
async fn three(client: &Client) -> Result<()> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = "/bare/_c_00000000-0000-4000-8000-000000000000-lock-";
    let created = client.create(prefix, b"", &options);
    let children = client.list_children("/bare");
    let (created, children) = tokio::join!(created, children);
    let (_, sequence) = created?;
    anyhow::ensure!(children?.len() == 1, "there is another waiter");
    client.delete(&format!("{prefix}{sequence}"), None).await?;
    Ok(())
}
