//! PostgreSQL: what a lock costs compared with two statements through the bare driver, and with an
//! advisory lock. All use one real server, started for this.

use std::sync::Arc;

use anyhow::{Context, Result};
use tenure::Config;
use tenure_servers::{Node, Options, Topology};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};
use crate::figures::Table;
use crate::pgbench::Pgbench;
use crate::warm::{Cycle, Entry, FEW, Own, Plan, Server, measure, of_tenure};
use crate::{hot, sql_recording};

/// The simplest lease: one row, written by the acquire and by the release.
const LEASE: [&str; 2] = [
    "INSERT INTO bare VALUES ('k', 'me', clock_timestamp() + interval '30 s') ON CONFLICT (k) \
     DO UPDATE SET o = excluded.o, u = excluded.u WHERE bare.u < clock_timestamp() RETURNING o",
    "UPDATE bare SET u = clock_timestamp() - interval '1 s' WHERE k = 'k' AND o = 'me'",
];
const ADVISORY: [&str; 2] = ["SELECT pg_try_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"];

/// Statements through the bare driver.
struct Pair(Arc<Client>, Vec<Statement>);

impl Pair {
    fn open<T: AsRef<str>>(runtime: &Runtime, node: &Node, texts: &[T]) -> Result<Pair> {
        runtime.block_on(async {
            let stream = TcpStream::connect((node.host(), node.port())).await?;
            stream.set_nodelay(true)?;
            let config: tokio_postgres::Config = node.url().parse()?;
            let (client, connection) = config.connect_raw(stream, NoTls).await?;
            drop(tokio::spawn(connection));
            let table =
                "CREATE TABLE IF NOT EXISTS bare (k bytea PRIMARY KEY, o text, u timestamptz)";
            client.batch_execute(table).await?;
            let mut statements = Vec::new();
            for text in texts {
                let text = text.as_ref();
                statements.push(client.prepare(text).await.with_context(|| text.to_owned())?);
            }
            Ok(Pair(Arc::new(client), statements))
        })
    }

    fn run(&self, runtime: &Runtime) -> Result<()> {
        runtime.block_on(self.all())
    }

    async fn all(&self) -> Result<()> {
        for statement in &self.1 {
            self.0.query(statement, &[]).await?;
        }
        Ok(())
    }
}

impl Cycle for Pair {
    async fn once(&mut self) -> Result<()> {
        self.all().await
    }
}

/// A warm loop. The bare clients send the statements of tenure, which the server has logged.
pub(crate) fn compare_warm(plan: Plan) -> Result<Vec<Table>> {
    let cluster = tenure_servers::start(Topology::Postgres, &Options::default())?;
    let (node, url) = (cluster.node(), cluster.url());
    let runtime = crate::workers()?;
    let client = runtime.block_on(tenure::connect(&url))?;
    let admin = Pair::open::<&str>(&runtime, node, &[])?;
    let recorded = sql_recording::postgres(&runtime, &client, node, &admin.0)?;
    let bare = Pair::open(&runtime, node, &recorded)?;
    let bare = Own::new(&runtime, 1, |_| Pair(bare.0.clone(), bare.1.clone()));
    let session = format!("{url}?mode=session");
    let [mut session, _] = of_tenure(&runtime, &session, 1)?;
    session.name = "tenure, mode=session".to_owned();
    let mut entries = vec![Entry::new("tokio-postgres, tenure's statements", bare)];
    entries.extend(of_tenure(&runtime, &url, FEW)?);
    entries.push(session);
    if plan.peers {
        let advisory = ADVISORY.map(str::to_owned);
        entries.push(Pgbench::entry("pgbench, tenure's statements", node, &recorded));
        entries.push(Pgbench::entry("pgbench, advisory lock", node, &advisory));
    }
    let about = "PostgreSQL, warm loop: acquire + release in one task";
    let server = Server::new(node)?;
    let one = (plan.turns(), 200, 1);
    let mut tables = vec![measure("postgres-warm", about, one, Some(&server), &mut entries)?];
    // The recorded statements are about one key: with many tasks only tenure is measured.
    let about = "PostgreSQL, warm loop: 32 tasks on 32 keys";
    let many = (plan.turns(), FEW * 20, FEW);
    let own = &mut entries[1..3];
    tables.push(measure("postgres-warm-32", about, many, Some(&server), own)?);
    tables.push(hot::compare_tasks("postgres", plan, node, &[])?);
    Ok(tables)
}

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Postgres, &Options::default())?;
    let node = cluster.node();
    let url = cluster.url();
    let runtime = crate::runtime()?;
    let lease = Pair::open(&runtime, node, &LEASE)?;
    let advisory = Pair::open(&runtime, node, &ADVISORY)?;
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
