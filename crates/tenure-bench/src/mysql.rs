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

/// The simplest lease: one row, written by the acquire and by the release.
const LEASE: [&str; 2] = [
    "INSERT INTO bare VALUES ('k', 'me', NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE \
     o = IF(u < NOW(6), VALUES(o), o), u = IF(u < NOW(6), VALUES(u), u)",
    "UPDATE bare SET u = NOW(6) - INTERVAL 1 SECOND WHERE k = 'k' AND o = 'me'",
];
const NAMED: [&str; 2] = ["SELECT GET_LOCK('bare', 0)", "SELECT RELEASE_LOCK('bare')"];

/// A pair of statements through the bare driver.
struct Pair(Conn, [&'static str; 2]);

impl Pair {
    fn open(runtime: &Runtime, url: &str, texts: [&'static str; 2]) -> Result<Pair> {
        let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
        runtime.block_on(async {
            let mut conn = Conn::new(opts).await?;
            let table = "CREATE TABLE IF NOT EXISTS bare \
                         (k varbinary(255) PRIMARY KEY, o varchar(64), u datetime(6))";
            conn.query_drop(table).await?;
            Ok(Pair(conn, texts))
        })
    }

    fn run(&mut self, runtime: &Runtime) -> Result<()> {
        runtime.block_on(async {
            self.0.query_drop(self.1[0]).await?;
            self.0.query_drop(self.1[1]).await?;
            Ok(())
        })
    }
}

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Mariadb, &Options::default())?;
    let url = cluster.url();
    let runtime = crate::runtime()?;
    let mut lease = Pair::open(&runtime, &url, LEASE)?;
    let mut named = Pair::open(&runtime, &url, NAMED)?;
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
