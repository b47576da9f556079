//! ZooKeeper: what a lock costs over the three requests that Curator's layout cannot do without.

use anyhow::Result;
use tenure::Config;
use tenure_servers::{Options, Topology, start};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Zookeeper, &Options::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
            ("zookeeper backend: take, release", by_backend(&runtime, &*backend)),
            ("the same, layout=ephemeral", by_backend(&runtime, &*ephemeral)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
        ],
    )
}

/// The requests of a lock that nobody else wants, in the same two trips as ours.
async fn three(client: &Client) -> Result<()> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = "/bare/_c_00000000-0000-4000-8000-000000000000-lock-";
    let created = client.create(prefix, b"", &options);
    let children = client.list_children("/bare");
    let (created, children) = tokio::join!(created, children);
    let (_, sequence) = created?;
    anyhow::ensure!(children?.len() == 1, "somebody else is here");
    client.delete(&format!("{prefix}{sequence}"), None).await?;
    Ok(())
}
