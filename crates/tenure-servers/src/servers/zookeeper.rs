//! ZooKeeper: one server, or an ensemble of three.

use std::io;
use std::time::Duration;

use super::{StartContext, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::node::{Node, START_LIMIT};
use crate::provision;
use crate::wire::zookeeper::{Session, mode};

/// The main class.
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// Options for a small JVM that starts quickly: the first compiler is enough for tests. No
/// performance data file, which would outlive a killed JVM.
const JVM: [&str; 7] = [
    "-Xms32m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];
/// The configuration of every node. The admin server is off because all nodes would use one port.
const COMMON: &str = "tickTime=500\n\
    initLimit=20\n\
    syncLimit=10\n\
    clientPortAddress=127.0.0.1\n\
    minSessionTimeout=1000\n\
    maxSessionTimeout=60000\n\
    maxClientCnxns=0\n\
    admin.enableServer=false\n\
    4lw.commands.whitelist=*\n";

pub(super) fn start(context: &StartContext<'_>, count: usize) -> Result<Vec<Node>> {
    let (class_path, java) = provision::zookeeper()?;
    let triples = (0..count).map(|_| ports::<3>()).collect::<Result<Vec<_>>>()?;
    let lines = triples.iter().zip(1..).map(|([_, quorum, election], i)| {
        format!("server.{i}=127.0.0.1:{}:{}\n", quorum.number(), election.number())
    });
    let ensemble = if count > 1 { lines.collect() } else { String::new() };

    let mut nodes = Vec::new();
    for (ports, i) in triples.into_iter().zip(1..) {
        let name = format!("n{i}");
        let folder = context.folder(&name)?;
        let data = folder.join("data");
        context.folder(&format!("{name}/data"))?;
        context.write(&data.join("myid"), &format!("{i}\n"))?;
        let sync = if context.options.durability.skips_sync() { "no" } else { "yes" };
        let text = format!(
            "{COMMON}dataDir={}\nclientPort={}\nforceSync={sync}\n{ensemble}",
            data.display(),
            ports[0].number()
        );
        context.write(&folder.join("zoo.cfg"), &text)?;
        let mut argv = argv(java.argv(context.preload()), &JVM);
        argv.push(format!("-Djava.io.tmpdir={}", folder.display()).into());
        argv.extend(["-cp".into(), class_path.clone(), MAIN.into(), "zoo.cfg".into()]);
        nodes.push(context.node(&name, ports.into(), argv)?);
    }
    nodes.iter().try_for_each(|node| node.wait_response(START_LIMIT))?;
    Ok(nodes)
}

/// Opens and closes a session, which needs a majority.
pub(super) fn ready(node: &Node) -> io::Result<()> {
    mode(node.port())?;
    Session::open(node.port(), Duration::from_secs(5))?.close()
}

pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let leads = |node: &&Node| mode(node.port()).is_ok_and(|mode| mode == "leader");
    Ok(cluster.nodes().iter().filter(|node| node.is_running()).find(leads))
}
