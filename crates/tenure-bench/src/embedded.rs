//! The embedded store: what a lock with queue, lease and token costs compared with the kernel's
//! file lock.

use anyhow::Result;
use std::fs::File;
use tenure::Config;

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("flock"))?;
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    let runtime = crate::runtime()?;
    let config: Config = url.parse()?;
    let backend = runtime.block_on(config.open())?;
    let locks = tenure::blocking::connect(&url)?;
    let lock = locks.lock("blocking");
    let client = runtime.block_on(tenure::connect(&url))?;
    Comparison::run(
        rounds,
        10,
        vec![
            (
                "flock(2), open file",
                Box::new(|| {
                    file.lock()?;
                    Ok(file.unlock()?)
                }),
            ),
            ("sqlite backend: acquire, release", by_backend(&runtime, &*backend)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
            ("tenure::blocking: acquire, release", Box::new(|| Ok(lock.acquire()?.release()?))),
        ],
    )
}
