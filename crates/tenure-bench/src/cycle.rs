//! One acquire and release: what is measured for every server.

use std::time::Duration;

use tenure::backend::{Backend, Claim, Owner};
use tenure::{Client, Key};
use tokio::runtime::Runtime;

use crate::compare::Turn;

/// With the backend alone, without a client.
pub(crate) fn by_backend<'a>(runtime: &'a Runtime, backend: &'a dyn Backend) -> Turn<'a> {
    let mut number = 0;
    Box::new(move || {
        number += 1;
        let owner = Owner::new([7; 16], number);
        let claim = Claim::new(Key::new("backend")?, owner, Duration::from_secs(30));
        runtime.block_on(async {
            backend.try_acquire(&claim).await?.granted()?;
            backend.release(&claim).await?;
            Ok(())
        })
    })
}

/// With a client, as a service does it.
pub(crate) fn by_client<'a>(runtime: &'a Runtime, client: &Client) -> Turn<'a> {
    let lock = client.lock("client");
    Box::new(move || Ok(runtime.block_on(async { lock.acquire().await?.release().await })?))
}
