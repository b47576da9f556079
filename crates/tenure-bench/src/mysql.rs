//! MariaDB: what a lock costs compared with two statements through the bare driver, and with a
//! named lock. All use one real server, started for this.

use anyhow::Result;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use tenure::Config;
use tenure_servers::{Options, Topology};
use tokio::runtime::Runtime;

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};
use crate::figures::Table;
use crate::sql_recording;
use crate::warm::{Cycle, Entry, FEW, Own, Plan, Server, measure, of_tenure};

/// The simplest lease: one row, written by the acquire and by the release.
const LEASE: [&str; 2] = [
    "INSERT INTO bare VALUES ('k', 'me', NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE \
     o = IF(u < NOW(6), VALUES(o), o), u = IF(u < NOW(6), VALUES(u), u)",
    "UPDATE bare SET u = NOW(6) - INTERVAL 1 SECOND WHERE k = 'k' AND o = 'me'",
];
const NAMED: [&str; 2] = ["SELECT GET_LOCK('bare', 0)", "SELECT RELEASE_LOCK('bare')"];

/// Statements through the bare driver.
struct Pair(Conn, Vec<String>);

impl Pair {
    fn open(runtime: &Runtime, url: &str, texts: Vec<String>) -> Result<Pair> {
        let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
        runtime.block_on(async {
            let mut conn = Conn::new(opts).await?;
            let table = "CREATE TABLE IF NOT EXISTS bare \
                         (k varbinary(255) PRIMARY KEY, o varchar(64), u datetime(6))";
            conn.query_drop(table).await?;
            for statement in sql_recording::setup(&texts) {
                conn.query_drop(statement).await?;
            }
            Ok(Pair(conn, texts))
        })
    }

    fn run(&mut self, runtime: &Runtime) -> Result<()> {
        runtime.block_on(self.once())
    }
}

impl Cycle for Pair {
    async fn once(&mut self) -> Result<()> {
        for text in &self.1 {
            self.0.query_drop(text.as_str()).await?;
        }
        Ok(())
    }
}

/// A warm loop. The bare driver sends the statements of tenure, which the server has logged.
pub(crate) fn compare_warm(plan: Plan) -> Result<Vec<Table>> {
    let cluster = tenure_servers::start(Topology::Mariadb, &Options::default())?;
    let (node, url) = (cluster.node(), cluster.url());
    let runtime = crate::workers()?;
    let client = runtime.block_on(tenure::connect(&url))?;
    let mut admin = Pair::open(&runtime, &url, Vec::new())?;
    let recorded = sql_recording::mysql(&runtime, &client, &mut admin.0)?;
    let pair = |texts: Vec<String>| -> Result<_> {
        let mut pair = Some(Pair::open(&runtime, &url, texts)?);
        Ok(Own::new(&runtime, 1, |_| pair.take().expect("there is one task")))
    };
    let mut entries = vec![Entry::new("mysql_async, tenure's statements", pair(recorded)?)];
    entries.extend(of_tenure(&runtime, &url, FEW)?);
    let named = NAMED.map(str::to_owned).to_vec();
    entries.push(Entry::new("mysql_async, GET_LOCK + RELEASE_LOCK", pair(named)?));
    let about = "MariaDB, warm loop: acquire + release in one task";
    let server = Server::new(node)?;
    let one = (plan.turns(), 200, 1);
    let mut tables = vec![measure("mysql-warm", about, one, Some(&server), &mut entries)?];
    // The recorded statements are about one key: with many tasks only tenure is measured.
    let about = "MariaDB, warm loop: 32 tasks on 32 keys";
    let many = (plan.turns(), FEW * 20, FEW);
    tables.push(measure("mysql-warm-32", about, many, Some(&server), &mut entries[1..3])?);
    Ok(tables)
}

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Mariadb, &Options::default())?;
    let url = cluster.url();
    let runtime = crate::runtime()?;
    let mut lease = Pair::open(&runtime, &url, LEASE.map(str::to_owned).into())?;
    let mut named = Pair::open(&runtime, &url, NAMED.map(str::to_owned).into())?;
    let config: Config = url.parse()?;
    let backend = runtime.block_on(config.open())?;
    let client = |mode: &str| runtime.block_on(tenure::connect(&format!("{url}?mode={mode}")));
    let (leases, sessions, rows) = (client("lease")?, client("session")?, client("row")?);
    Comparison::run(
        rounds,
        4,
        vec![
            ("bare driver: lease by two statements", Box::new(|| lease.run(&runtime))),
            ("bare driver: GET_LOCK, RELEASE_LOCK", Box::new(|| named.run(&runtime))),
            ("mysql backend: acquire, release", by_backend(&runtime, &*backend)),
            ("tenure, mode=lease", by_client(&runtime, &leases)),
            ("tenure, mode=session", by_client(&runtime, &sessions)),
            ("tenure, mode=row", by_client(&runtime, &rows)),
        ],
    )
}
