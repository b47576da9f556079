//! PostgreSQL: what a lock costs compared with two statements through the bare driver, and with an
//! advisory lock. All use one real server, started for this.

use anyhow::Result;
use tenure::Config;
use tenure_servers::{Node, Options, Topology};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};

/// The simplest lease: one row, written by the acquire and by the release.
const LEASE: [&str; 2] = [
    "INSERT INTO bare VALUES ('k', 'me', clock_timestamp() + interval '30 s') ON CONFLICT (k) \
     DO UPDATE SET o = excluded.o, u = excluded.u WHERE bare.u < clock_timestamp() RETURNING o",
    "UPDATE bare SET u = clock_timestamp() - interval '1 s' WHERE k = 'k' AND o = 'me'",
];
const ADVISORY: [&str; 2] = ["SELECT pg_try_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"];

/// A pair of statements through the bare driver.
struct Pair(Client, [Statement; 2]);

impl Pair {
    fn open(runtime: &Runtime, node: &Node, texts: [&str; 2]) -> Result<Pair> {
        runtime.block_on(async {
            let stream = TcpStream::connect((node.host(), node.port())).await?;
            stream.set_nodelay(true)?;
            let config: tokio_postgres::Config = node.url().parse()?;
            let (client, connection) = config.connect_raw(stream, NoTls).await?;
            drop(tokio::spawn(connection));
            let table =
                "CREATE TABLE IF NOT EXISTS bare (k bytea PRIMARY KEY, o text, u timestamptz)";
            client.batch_execute(table).await?;
            let both = [client.prepare(texts[0]).await?, client.prepare(texts[1]).await?];
            Ok(Pair(client, both))
        })
    }

    fn run(&self, runtime: &Runtime) -> Result<()> {
        runtime.block_on(async {
            self.0.query(&self.1[0], &[]).await?;
            self.0.query(&self.1[1], &[]).await?;
            Ok(())
        })
    }
}

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Postgres, &Options::default())?;
    let node = cluster.node();
    let url = cluster.url();
    let runtime = crate::runtime()?;
    let lease = Pair::open(&runtime, node, LEASE)?;
    let advisory = Pair::open(&runtime, node, ADVISORY)?;
    let config: Config = url.parse()?;
    let backend = runtime.block_on(config.open())?;
    let client = |mode: &str| runtime.block_on(tenure::connect(&format!("{url}?mode={mode}")));
    let (leases, sessions, rows) = (client("lease")?, client("session")?, client("row")?);
    Comparison::run(
        rounds,
        4,
        vec![
            ("bare driver: lease by two statements", Box::new(|| lease.run(&runtime))),
            ("bare driver: advisory lock, unlock", Box::new(|| advisory.run(&runtime))),
            ("postgres backend: acquire, release", by_backend(&runtime, &*backend)),
            ("tenure, mode=lease", by_client(&runtime, &leases)),
            ("tenure, mode=session", by_client(&runtime, &sessions)),
            ("tenure, mode=row", by_client(&runtime, &rows)),
        ],
    )
}
