//! Migrations: twenty replicas start at once, one migrates, the others wait for it and go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Client;

async fn start(locks: Client, version: Arc<AtomicU32>) -> tenure::Result<()> {
    let lock = locks.lock("schema").note("v42");
    let guard = lock.acquire_within(Duration::from_secs(120)).await?.granted()?;
    let migrate = async {
        if version.load(Ordering::Relaxed) < 42 {
            println!("migrating to 42");
            version.store(42, Ordering::Relaxed);
        }
    };
    guard.while_held(migrate).await?;
    guard.release().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect("memory:").await?;
    let version = Arc::new(AtomicU32::new(41));
    let mut replicas = tokio::task::JoinSet::new();
    for _ in 0..20 {
        replicas.spawn(start(locks.clone(), version.clone()));
    }
    while let Some(replica) = replicas.join_next().await {
        replica??;
    }
    Ok(())
}
