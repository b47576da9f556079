//! Inside one process: what the API costs compared with tokio's mutex.

use anyhow::Result;
use tenure::Client;
use tenure::backends::Memory;

use crate::compare::Comparison;

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let runtime = crate::runtime()?;
    let mutex = tokio::sync::Mutex::new(());
    let client = Client::new(Memory::new());
    let lock = client.lock("k");
    Comparison::run(
        rounds,
        1000,
        vec![
            (
                "tokio::sync::Mutex",
                Box::new(|| {
                    runtime.block_on(async { drop(mutex.lock().await) });
                    Ok(())
                }),
            ),
            (
                "tenure memory: acquire, drop",
                Box::new(|| Ok(runtime.block_on(async { lock.acquire().await.map(drop) })?)),
            ),
            (
                "tenure memory: acquire, release",
                Box::new(|| Ok(runtime.block_on(async { lock.acquire().await?.release().await })?)),
            ),
        ],
    )
}
