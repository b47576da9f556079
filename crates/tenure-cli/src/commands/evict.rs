//! `tenure evict`: force-releases exactly one grant.

use tenure::{Key, blocking};

use crate::args::Evict;
use crate::exit;
use crate::failure::Failure;

pub(super) fn run(client: &blocking::Client, args: &Evict) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let lock = client.lock(&key);
    if lock.evict(args.token)? {
        return Ok(exit::DONE);
    }
    let now = match lock.status()?.and_then(|holding| holding.holder.token) {
        Some(token) => format!("it is held with token {token}"),
        None => "it is free".to_owned(),
    };
    let message = format!("`{key}` is not held with token {}: {now}", args.token);
    Err(Failure::new(exit::NO, message, "see it with `tenure show KEY`"))
}
