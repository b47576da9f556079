//! Several tasks under one lock: each has the lease, and all stop when the lock is lost.

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect("memory:").await?;
    let lock = locks.lock("import");
    let guard = lock.acquire().await?;
    let mut parts = tokio::task::JoinSet::new();
    for part in 0..3 {
        let lease = guard.lease().clone();
        parts.spawn(async move {
            let work = tokio::time::sleep(Duration::from_secs(3600));
            match lease.while_held(work).await {
                Ok(()) => println!("part {part} is done"),
                Err(lost) => println!("part {part} stops: {lost}"),
            }
        });
    }
    // The lock is evicted, as an operator does with `tenure evict`.
    lock.evict(guard.token()).await?;
    while let Some(part) = parts.join_next().await {
        part?;
    }
    Ok(())
}
