//! ZooKeeper: what a lock costs compared with the three requests that Curator's layout needs at
//! least.

use anyhow::{Context, Result};
use tenure::Config;
use tenure::backends::Zookeeper;
use tenure_servers::{Options, Topology, start};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};
use crate::figures::Table;
use crate::hot;
use crate::peer::{CURATOR, KAZOO};
use crate::warm::{Cycle, Entry, FEW, Own, Plan, Server, of_tenure, one_and_many};

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
            ("create + getChildren, delete", Box::new(|| runtime.block_on(three(&bare, "/bare")))),
            ("zookeeper backend: acquire, release", by_backend(&runtime, &*backend)),
            ("zookeeper backend, layout=ephemeral", by_backend(&runtime, &*ephemeral)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
        ],
    )
}

/// A warm loop, and one hot key.
pub(crate) fn compare_warm(plan: Plan) -> Result<Vec<Table>> {
    let cluster = start(Topology::Zookeeper, &Options::default())?;
    let node = cluster.node();
    let runtime = crate::workers()?;
    let bare = runtime.block_on(Client::connect(&cluster.hosts()))?;
    // A container that is empty for a moment would be deleted.
    let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for number in 0..FEW {
        runtime.block_on(bare.mkdir(&format!("/bare{number}"), &folder))?;
    }
    let three = |number| Three(bare.clone(), format!("/bare{number}"));
    let mut entries =
        vec![Entry::new("create + getChildren, delete", Own::new(&runtime, FEW, three))];
    entries.extend(of_tenure(&runtime, &cluster.url(), FEW)?);
    let peers = [("InterProcessMutex (Curator)", &CURATOR), ("kazoo (Python)", &KAZOO)];
    for (name, recipe) in peers.iter().filter(|_| plan.peers) {
        entries.push(recipe.entry(name, node, ""));
    }
    let (server, name) = (Server::new(node)?, "zookeeper-warm");
    let mut tables = one_and_many(name, "ZooKeeper", (plan, FEW), &server, &mut entries)?;
    tables.push(hot::compare_tasks("zookeeper", plan, node, &peers)?);
    Ok(tables)
}

/// The three requests in one folder.
struct Three(Client, String);

impl Cycle for Three {
    async fn once(&mut self) -> Result<()> {
        three(&self.0, &self.1).await
    }
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
async fn three(client: &Client, folder: &str) -> Result<()> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{folder}/_c_00000000-0000-4000-8000-000000000000-lock-");
    let created = client.create(&prefix, b"", &options);
    let children = client.list_children(folder);
    let (created, children) = tokio::join!(created, children);
    let (_, sequence) = created?;
    anyhow::ensure!(children?.len() == 1, "there is another waiter");
    client.delete(&format!("{prefix}{sequence}"), None).await?;
    Ok(())
}
