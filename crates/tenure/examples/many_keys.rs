//! Five hundred keys at once, in a canonical order, so that two callers cannot deadlock.

use tenure::{Client, Guard, Key};

async fn acquire_all(locks: &Client, mut keys: Vec<Key>) -> tenure::Result<Vec<Guard>> {
    keys.sort();
    keys.dedup();
    let mut guards = Vec::with_capacity(keys.len());
    for key in keys {
        guards.push(locks.lock(key).acquire().await?);
    }
    Ok(guards)
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let locks = tenure::connect("memory:").await?;
    let keys = (0..500).map(|number| Key::new(format!("rows/{number}")));
    let guards = acquire_all(&locks, keys.collect::<tenure::Result<_>>()?).await?;
    println!("{} locks are held, and renewed by one task", guards.len());
    drop(guards);
    locks.flush().await?;
    Ok(())
}
