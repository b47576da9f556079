//! A re-entrant lock: acquired again further down the call chain.

use tenure::Reentrant;

async fn transfer(lock: &mut Reentrant) -> tenure::Result<()> {
    let guard = lock.acquire().await?;
    for account in ["from", "to"] {
        book(lock, account).await?;
    }
    guard.release().await
}

/// Has other callers too, so it acquires the lock itself.
async fn book(lock: &mut Reentrant, account: &str) -> tenure::Result<()> {
    let guard = lock.acquire().await?;
    println!("booking `{account}` under token {}", guard.token());
    guard.release().await
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let locks = tenure::connect("memory:").await?;
    transfer(&mut locks.lock("accounts").reentrant()).await
}
