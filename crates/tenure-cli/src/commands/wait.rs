//! `tenure wait`: waits until a lock is free, without acquiring it.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::{Duration, Instant};

use tenure::Key;

use crate::args::Wait;
use crate::exit;
use crate::failure::Failure;
use crate::holder::HoldersLine;
use crate::output;
use crate::store::{MIN_RESPONSE_TIME, Store, duration_option, outage_within};
use crate::waiting::within;

/// After how long a wait is reported also where stderr is no terminal.
const LONG_WAIT: Duration = Duration::from_secs(10);

pub(super) fn run(store: &Store, args: &Wait) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let mut config = store.config()?;
    if let Some(limit) = args.wait {
        config = config.outage(outage_within(limit, duration_option(&store.url, "outage")));
    }
    let after = |limit| Instant::now().checked_add(limit);
    let until = args.wait.and_then(after);
    let responded = args.wait.and_then(|limit| after(limit.max(MIN_RESPONSE_TIME)));
    let client = within(responded, config.connect()).ok_or_else(Failure::no_response)?;
    let client = client.map_err(|error| store.source.name_in(error))?;
    let lock = client.lock(&key);
    let holding = within(responded, lock.status()).ok_or_else(Failure::no_response)??;
    let Some(holding) = holding else { return Ok(exit::DONE) };
    let holder = HoldersLine(&holding);
    let mut free = pin!(lock.until_free());
    let read_along = args.verbose || std::io::stderr().is_terminal();
    let report_at = Instant::now() + if read_along { Duration::ZERO } else { LONG_WAIT };
    let first_limit = until.map_or(report_at, |until| until.min(report_at));
    let mut freed = within(Some(first_limit), free.as_mut());
    if freed.is_none() && until.is_none_or(|until| Instant::now() < until) {
        output::say(&format_args!("waiting until `{key}` is free, held by {holder}"));
        freed = within(until, free);
    }
    match freed {
        Some(free) => free.map(|()| exit::DONE).map_err(Failure::from),
        None => {
            let message = format!("`{key}` is still held, by {holder}");
            Err(Failure::new(exit::BUSY, message, "wait longer with --wait DUR, or without it"))
        }
    }
}
