//! ZooKeeper, one or an ensemble of three.

use std::io;
use std::time::Duration;

use super::{Site, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::get;
use crate::node::{Node, START_LONGEST};
use crate::wire::zookeeper::{Session, mode};

pub(super) fn start(site: &Site<'_>, count: usize) -> Result<Vec<Node>> {
    let (class_path, java) = get::zookeeper()?;
    let triples = (0..count).map(|_| ports::<3>()).collect::<Result<Vec<_>>>()?;
    let lines = triples.iter().zip(1..).map(|([_, quorum, election], i)| {
        format!("server.{i}=127.0.0.1:{}:{}\n", quorum.number(), election.number())
    });
    let ensemble = if count > 1 { lines.collect() } else { String::new() };

    let mut nodes = Vec::new();
    for (ports, i) in triples.into_iter().zip(1..) {
        let name = format!("n{i}");
        let folder = site.folder(&name)?;
        let data = folder.join("data");
        site.folder(&format!("{name}/data"))?;
        site.write(&data.join("myid"), &format!("{i}\n"))?;
        let sync = if site.options.durability.skips_sync() { "no" } else { "yes" };
        let text = format!(
            "{COMMON}dataDir={}\nclientPort={}\nforceSync={sync}\n{ensemble}",
            data.display(),
            ports[0].number()
        );
        site.write(&folder.join("zoo.cfg"), &text)?;
        let mut argv = argv(java.argv(site.preload()), &JVM);
        argv.push(format!("-Djava.io.tmpdir={}", folder.display()).into());
        argv.extend(["-cp".into(), class_path.clone(), MAIN.into(), "zoo.cfg".into()]);
        nodes.push(site.node(&name, ports.into(), argv)?);
    }
    nodes.iter().try_for_each(|node| node.wait_answer(START_LONGEST))?;
    Ok(nodes)
}

/// A session is opened and closed, which both need a majority.
pub(super) fn ready(node: &Node) -> io::Result<()> {
    mode(node.port())?;
    Session::open(node.port(), Duration::from_secs(5))?.close()
}

pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let leads = |node: &&Node| mode(node.port()).is_ok_and(|mode| mode == "leader");
    Ok(cluster.nodes().iter().filter(|node| node.is_running()).find(leads))
}

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// Small and quick to start; the first compiler alone is enough for tests. No file for monitors,
/// which would outlive a JVM that is killed.
const JVM: [&str; 7] = [
    "-Xms32m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];

/// The admin server is off because every node would want the same port.
const COMMON: &str = "tickTime=500\n\
    initLimit=20\n\
    syncLimit=10\n\
    clientPortAddress=127.0.0.1\n\
    minSessionTimeout=1000\n\
    maxSessionTimeout=60000\n\
    maxClientCnxns=0\n\
    admin.enableServer=false\n\
    4lw.commands.whitelist=*\n";
