//! The embedded store: what a lock with queue, lease and token costs over the kernel's file lock.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use tenure::backend::{Claim, Owner};
use tenure::{Config, Key};

use crate::compare::Comparison;

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("flock"))?;
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config: Config = url.parse()?;
    let backend = runtime.block_on(config.open())?;
    let locks = tenure::blocking::connect(&url)?;
    let lock = locks.lock("blocking");
    let client = runtime.block_on(tenure::connect(&url))?;
    let key = Key::new("bare")?;
    let mut number = 0;
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
            (
                "sqlite backend: take, release",
                Box::new(|| {
                    number += 1;
                    let owner = Owner::new([7; 16], number);
                    let claim = Claim::new(key.clone(), owner, Duration::from_secs(30));
                    runtime.block_on(async {
                        backend.try_acquire(&claim).await?.granted()?;
                        backend.release(&claim).await?;
                        Ok(())
                    })
                }),
            ),
            (
                "tenure: acquire, release",
                Box::new(|| {
                    let lock = client.lock("async");
                    Ok(runtime.block_on(async { lock.acquire().await?.release().await })?)
                }),
            ),
            ("tenure::blocking: acquire, release", Box::new(|| Ok(lock.acquire()?.release()?))),
        ],
    )
}
