//! Two accounts are locked together, all of them or none, whichever order they are named in: two
//! transfers in opposite directions at the same time do not wait for each other for ever.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Client, FencingToken};

/// A balance, and the token under which it was written last.
type Accounts = Arc<Mutex<HashMap<String, (i64, Option<FencingToken>)>>>;

async fn transfer(
    locks: Client,
    accounts: Accounts,
    from: &'static str,
    to: &'static str,
) -> tenure::Result<()> {
    let both =
        locks.lock_all([from, to]).acquire_within(Duration::from_secs(5)).await?.granted()?;
    let work = async {
        for (account, change) in [(from, -1), (to, 1)] {
            // Each account has a lock and so a token of its own. A resource of the real world would
            // refuse one that is lower than the last: see `tenure::fence`.
            let token = both.token(account)?;
            let mut accounts = accounts.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = accounts.entry(account.to_owned()).or_default();
            assert!(entry.1.is_none_or(|last| last < token), "a stale holder");
            *entry = (entry.0 + change, Some(token));
        }
        Ok::<_, tenure::Error>(())
    };
    both.while_held(work).await??; // first ?: one of the locks was lost
    both.release().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect("memory:").await?;
    let accounts = Accounts::default();
    let mut transfers = Vec::new();
    for number in 0..100 {
        let (from, to) = if number % 2 == 0 { ("a/3", "a/7") } else { ("a/7", "a/3") };
        transfers.push(tokio::spawn(transfer(locks.clone(), accounts.clone(), from, to)));
    }
    for transfer in transfers {
        transfer.await??;
    }
    println!("{:?}", accounts.lock().map_err(|error| error.to_string())?);
    Ok(())
}
