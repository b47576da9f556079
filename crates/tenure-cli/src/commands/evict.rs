//! `tenure evict`: force-releases exactly one grant, with `--ask` only after its holder was told to
//! end and did not.

use std::io::{BufRead, IsTerminal};
use std::time::{Duration, Instant};

use tenure::{FencingToken, Holder, Holding, Key, blocking};

use super::end_holder;
use crate::args::Evict;
use crate::exit;
use crate::failure::Failure;
use crate::holder::HolderLine;
use crate::output::{self, Short};

/// How often a lock is looked at while its holder ends.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(client: &blocking::Client, args: &Evict) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let lock = client.lock(&key);
    let holding = lock.status()?;
    let token = match args.token {
        Some(token) => token,
        None => current(&key, holding.as_ref(), args.yes)?,
    };
    if let Some(limit) = args.ask {
        let holder = holding.as_ref().and_then(|holding| holder_with(holding, token));
        let Some(holder) = holder else { return Err(absent(&lock, &key, token)) };
        end_holder::tell_to_end(holder)?;
        if until_released(&lock, token, limit)? {
            return Ok(exit::DONE);
        }
        output::say(&format_args!("`{key}` was not released in time: evicting its holder"));
    }
    if lock.evict(token)? {
        return Ok(exit::DONE);
    }
    Err(absent(&lock, &key, token))
}

/// The holder whose grant has this token.
fn holder_with(holding: &Holding, token: FencingToken) -> Option<&Holder> {
    holding.holders.iter().find(|holder| holder.token == Some(token))
}

/// The grant with this token is not there.
fn absent(lock: &blocking::Lock, key: &Key, token: FencingToken) -> Failure {
    let now = match lock.status() {
        Ok(Some(holding)) => {
            let tokens = holding.holders.iter().filter_map(|holder| holder.token);
            let tokens: Vec<_> = tokens.map(|token| token.to_string()).collect();
            match &tokens[..] {
                [] => "its token is not known".to_owned(),
                tokens => format!("it is held with token {}", tokens.join(", ")),
            }
        }
        Ok(None) => "it is free".to_owned(),
        Err(error) => return error.into(),
    };
    let message = format!("`{key}` is not held with token {token}: {now}");
    Failure::new(exit::NO, message, "see it with `tenure show KEY`")
}

/// The token of the current grant, if the user agrees.
fn current(key: &Key, holding: Option<&Holding>, yes: bool) -> Result<FencingToken, Failure> {
    let Some(holder) = holding.map(|holding| holding.holder()) else {
        let advice = "see what is held with `tenure ls`";
        return Err(Failure::new(exit::NO, format!("`{key}` is free"), advice));
    };
    if let Some(several) = holding.filter(|holding| holding.holders.len() > 1) {
        let message = format!("`{key}` has {} holders", several.holders.len());
        let advice = "name one by its token, which `tenure show KEY` prints";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    let Some(token) = holder.token else {
        let message = format!("the server does not report the token of `{key}`");
        return Err(Failure::new(exit::USAGE, message, "end its holder itself"));
    };
    if yes || agrees(key, holding, token)? {
        return Ok(token);
    }
    Err(Failure::new(exit::NO, format!("`{key}` was not evicted"), "answer `y` to evict it"))
}

fn agrees(key: &Key, holding: Option<&Holding>, token: FencingToken) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        let message = "there is no terminal to ask on whether to evict the current holder";
        let advice = "give --yes, or the grant with --token N";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    if let Some(holder) = holding.map(|holding| holding.holder()) {
        let held_for = holder.held_for.map(|time| format!(", held for {}", Short(time)));
        let held_for = held_for.unwrap_or_default();
        output::say(&format_args!("`{key}` (token {token}{held_for}): {}", HolderLine(holder)));
    }
    output::say(&"evict this holder? [y/N]");
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Waits until the grant with this token has ended. Returns whether it has.
fn until_released(
    lock: &blocking::Lock,
    token: FencingToken,
    limit: Option<Duration>,
) -> Result<bool, Failure> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        // The queue may pass the lock on, so that it is never seen free.
        if lock.status()?.is_none_or(|holding| holder_with(&holding, token).is_none()) {
            return Ok(true);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => return Ok(false),
            left => std::thread::sleep(left.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL)),
        }
    }
}
